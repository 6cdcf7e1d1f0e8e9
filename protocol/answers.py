"""A worker's messages about requests. The parts of answers have one form, which the gateway turns
into the form of each API.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from protocol.message_base import Message, TokenId


class Part(Struct, frozen=True, array_like=True):
    """Base of the parts of answers. The fields of a part are positional on the wire, since most
    bytes of an answer are parts.
    """

    @property
    def size(self) -> int:
        """The number of characters and bytes in the part, and one for the part itself."""
        return 1


class Text(Part, frozen=True, tag="t"):
    """The next characters of the answer itself."""

    text: str

    @property
    def size(self) -> int:
        return 1 + len(self.text)


class Reasoning(Part, frozen=True, tag="r"):
    """The next characters of the model's thoughts before its answer."""

    text: str

    @property
    def size(self) -> int:
        return 1 + len(self.text)


class ToolCall(Part, frozen=True, tag="c"):
    """The next characters of the arguments of one call. The complete arguments are a JSON object.

    Calls are numbered from 0 in the order of their begin. The first part of a call has its `name`.
    """

    index: int
    arguments: str
    name: str | None = None

    @property
    def size(self) -> int:
        return 1 + len(self.arguments) + len(self.name or "")


class Alternative(Struct, frozen=True, array_like=True):
    """A token that could have been chosen: the bytes of its text, and its log probability."""

    text: bytes
    logprob: float


class TokenLogprob(Struct, frozen=True, array_like=True):
    """A token that was chosen. `logprob` is the natural logarithm of its probability before any
    setting of the sampling. `top` are the most probable tokens at this place, best first.
    """

    text: bytes
    logprob: float
    top: tuple[Alternative, ...] = ()


class Logprobs(Part, frozen=True, tag="p"):
    """The log probabilities of the next tokens. The text of these tokens may come later."""

    tokens: tuple[TokenLogprob, ...]

    @property
    def size(self) -> int:
        return 1 + sum(
            1 + len(token.text) + sum(1 + len(other.text) for other in token.top)
            for token in self.tokens
        )


class PromptToken(Struct, frozen=True, array_like=True):
    """A token of the prompt, like `TokenLogprob`. The first token has no log probability, as
    nothing comes before it.
    """

    text: bytes
    logprob: float | None
    top: tuple[Alternative, ...] = ()


class PromptLogprobs(Part, frozen=True, tag="q"):
    """The log probabilities of the prompt's tokens from number `begin` on. They come before the
    first token of the answer, for a long prompt in several parts. If the worker is lost meanwhile,
    the next worker begins at 0.
    """

    begin: int
    tokens: tuple[PromptToken, ...]


AnswerPart: TypeAlias = Text | Reasoning | ToolCall | Logprobs | PromptLogprobs


def merged(parts: Iterable[AnswerPart]) -> list[AnswerPart]:
    """The same answer in the fewest parts. Neighbours of one kind are joined. All log probabilities
    of the answer become one part behind the other parts.
    """
    parts = list(parts)
    if len(parts) == 1:
        return parts
    texts = [part.text for part in parts if isinstance(part, Text)]
    if texts and len(texts) == len(parts):
        # The loop would give the same result in three times the time, and runs for every token.
        return [Text("".join(texts))]
    together: list[AnswerPart] = []
    logprobs: list[TokenLogprob] = []
    for part in parts:
        last = together[-1] if together else None
        match last, part:
            case _, Logprobs(tokens):
                logprobs += tokens
            case Text(before), Text(after):
                together[-1] = Text(before + after)
            case Reasoning(before), Reasoning(after):
                together[-1] = Reasoning(before + after)
            case ToolCall(index, before, name), ToolCall(other, after, None) if index == other:
                together[-1] = ToolCall(index, before + after, name)
            case PromptLogprobs(begin, prompt), PromptLogprobs(next_begin, more) if (
                begin + len(prompt) == next_begin
            ):
                together[-1] = PromptLogprobs(begin, prompt + more)
            case _:
                together.append(part)
    return [*together, Logprobs(tuple(logprobs))] if logprobs else together


# So many packed token ids take half a megabyte, well within a worker's frame.
TOKENS_PER_RENDERED = 1 << 17

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]
RequestErrorCode: TypeAlias = Literal[
    "invalid_request_error", "context_length_exceeded", "insufficient_memory", "internal_error"
]
RequestField: TypeAlias = Literal[
    "prompt",
    "constraint",
    "tools",
    "template_arguments",
    "suffix",
    "prompt_logprobs",
    "logit_bias",
    "allowed_token_ids",
    "stop_token_ids",
    "bad_words",
    "inputs",
    "dimensions",
    "prompt_name",
    "truncate",
]


class Guesses(Struct, frozen=True, array_like=True):
    """The numbers of guessed tokens that the engine checked. The `accepted` ones were right, and
    became tokens of the answer; the `rejected` ones were wrong.
    """

    accepted: Annotated[int, Meta(ge=0)] = 0
    rejected: Annotated[int, Meta(ge=0)] = 0

    def __add__(self, other: Guesses) -> Guesses:
        return Guesses(self.accepted + other.accepted, self.rejected + other.rejected)


class Usage(Struct, frozen=True):
    """Token counts of one request. An end-of-sequence token counts as a token of the answer.
    `cached_tokens` of the prompt were not computed anew. `reasoning_tokens` of the answer were
    reasoning and its tags. The gateway adds up the `guesses`, as several workers may have made the
    answer. When the request came, the disk had the first `stored_tokens` of the prompt.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    guesses: Guesses = Guesses()
    stored_tokens: int = 0


class Delta(Struct, frozen=True, array_like=True):
    """The tokens and parts that steps of the engine added to the answer of one request. The fields
    are positional on the wire, since most bytes of messages are deltas.

    `parts` may lag behind `token_ids`: an unfinished character, stop sequence or tag is held back.
    The last delta completes the parts. It has the finish reason and the usage, and the stop
    sequence if one ended the answer. The first delta names the keywords of the request's schemas
    that are `unenforced`. The steps checked these `guesses`. The last delta says whether the answer
    `repeats` the same tokens at its end.
    """

    request_id: str
    token_ids: tuple[TokenId, ...]
    parts: tuple[AnswerPart, ...]
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    stop_sequence: str | None = None
    unenforced: tuple[str, ...] = ()
    guesses: Guesses = Guesses()
    repeats: bool = False


class Rendered(Message, frozen=True, tag="rendered"):
    """The prompt of a request as packed token ids, before the first output of that request.

    A prompt longer than `TOKENS_PER_RENDERED` comes in several messages, in order; the last one has
    `last`. Templates print dates, so another worker must go on from these ids instead of rendering
    anew. A `TokenPrompt` has no such message.
    """

    request_id: str
    token_ids: bytes
    last: bool


class Output(Message, frozen=True, tag="output"):
    """The deltas of all requests, from the steps since the last `Output`."""

    step: int
    deltas: tuple[Delta, ...]


class Embedded(Message, frozen=True, tag="embedded"):
    """The vectors or scores of the next inputs, in the order of the inputs. Each vector has
    `dimensions` numbers, packed as little-endian floats of four bytes. The first message of a
    request counts the `tokens` of all its inputs; later messages have 0.
    """

    request_id: str
    dimensions: int
    vectors: bytes
    tokens: int
    last: bool


class RequestFailed(Message, frozen=True, tag="request-failed"):
    """A request can't be run. Other requests go on. `field` is the field of `Generate` or `Embed`
    that is to blame; `picture` is the number of a picture that is to blame.
    """

    request_id: str
    code: RequestErrorCode
    message: str
    field: RequestField | None = None
    picture: int | None = None


class OutputInvalid(Message, frozen=True, tag="output-invalid"):
    """The logits of a request's next token weren't finite, or were all the same, so no token was
    drawn from them. So many of the request's cached blocks aren't found any more. The worker
    `goes_on` with the request, and computes it anew without cached blocks. Otherwise it has dropped
    the request.
    """

    request_id: str
    goes_on: bool
    quarantined_blocks: int = 0


class Costs(Message, frozen=True, tag="costs"):
    """The seconds that the engine computed for each sharer since the last `Costs`."""

    seconds: dict[str, Annotated[float, Meta(ge=0, le=86_400)]]
