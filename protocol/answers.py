"""What a worker says of requests."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from protocol.message import Message
from protocol.parts import AnswerPart
from protocol.tokens import TokenId

# Half a megabyte: well within a worker's frame.
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


class Usage(Struct, frozen=True):
    """Token counts of one request; an end-of-sequence token counts as generated. `cached_tokens` of
    the prompt were not computed anew; `reasoning_tokens` of the answer were reasoning and its tags.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Delta(Struct, frozen=True, array_like=True):
    """What steps of the engine added to one request. Positional on the wire: most bytes are these.

    `parts` may lag behind `token_ids` (an unfinished character, stop sequence or tag is held back);
    they are complete in the delta that carries the finish reason and the usage, and the stop
    sequence if one ended the answer. The first one says what of its schemas is `unenforced`.
    """

    request_id: str
    token_ids: tuple[TokenId, ...]
    parts: tuple[AnswerPart, ...]
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    stop_sequence: str | None = None
    unenforced: tuple[str, ...] = ()


class Rendered(Message, frozen=True, tag="rendered"):
    """The prompt of a request as packed token ids, before the first output of that request.

    A prompt longer than `TOKENS_PER_RENDERED` comes in several, in order; `last` ends it. Templates
    print dates, so another worker must go on from these ids instead of rendering anew. Not sent for
    a `TokenPrompt`.
    """

    request_id: str
    token_ids: bytes
    last: bool


class Output(Message, frozen=True, tag="output"):
    """Everything that steps made since the last one, for all requests."""

    step: int
    deltas: tuple[Delta, ...]


class Embedded(Message, frozen=True, tag="embedded"):
    """What was made of the next inputs, in their order: so many numbers of each, packed as
    little-endian floats of four bytes. They had so many `tokens`.
    """

    request_id: str
    dimensions: int
    vectors: bytes
    tokens: int
    last: bool


class RequestFailed(Message, frozen=True, tag="request-failed"):
    """A request that can't be run; the others are untouched. `field` of `Generate` or `Embed` is to
    blame, or a picture, by its number.
    """

    request_id: str
    code: RequestErrorCode
    message: str
    field: RequestField | None = None
    picture: int | None = None
