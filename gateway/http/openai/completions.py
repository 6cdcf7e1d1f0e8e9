"""POST /v1/completions."""

from __future__ import annotations

import functools
import re
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.config.model import Model
from gateway.http.generation.generation_body import (
    MOST_ANSWERS,
    StructuredBody,
    check_generation,
    constraint_of,
    generate_message,
    with_defaults,
)
from gateway.http.generation.model_call import ModelCall
from gateway.http.generation.supported_parameters import refusing
from gateway.http.generation.text_request import RequestDraft, request_text
from gateway.http.openai.chat_writer import (
    CompletionLogprobs,
    CompletionUsage,
    completion_logprobs,
    tokens_of,
)
from gateway.http.passing.pass_on import passing
from gateway.http.wire.answer import DONE, TextEvents, server_sent_event
from gateway.http.wire.bodies import read_json, with_whole_numbers
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import EVENT_STREAM, GENERATES, Operation, Routes
from gateway.requests.choices import Choice, only_text, system_fingerprint
from gateway.requests.request import AnswerPiece, Request
from gateway.system.refusal import Refusal
from protocol.answers import (
    AnswerPart,
    FinishReason,
    PromptLogprobs,
    PromptToken,
    Text,
    TokenLogprob,
    Usage,
)
from protocol.message_base import LARGEST_TOKEN_ID, pack
from protocol.requests import (
    Prompt,
    TextPrompt,
    TokenPrompt,
)

routes = Routes("OpenAI")

_MOST_TOKENS: Final = 2_000_000
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)

Input: TypeAlias = TextPrompt | TokenPrompt
_TOKENS: Final = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": 0, "maximum": LARGEST_TOKEN_ID},
}
# The type of a field with inputs. The JSON schema describes its possible values.
Inputs = Annotated[
    Raw,
    Meta(
        extra_json_schema={
            "anyOf": [
                {"type": "string"},
                {"type": "array", "minItems": 1, "items": {"type": "string"}},
                _TOKENS,
                {"type": "array", "minItems": 1, "items": _TOKENS},
            ]
        }
    ),
]


def parse_inputs(raw: Raw, param: str, most: int) -> list[Input]:
    """A text, a list of token ids, or a list of at most `most` texts or lists of token ids. `param`
    names the field.

    Raises:
        Refusal: the value is none of these, or is too long.
    """
    text = bytes(raw).strip()
    inner = text[1:].lstrip() if text.startswith(b"[") else b""
    try:
        if text.startswith(b'"'):
            return [TextPrompt(msgspec.json.decode(text, type=str))]
        if inner.startswith(b'"'):
            _check_number(count_strings(text, most), param, most)
            return [TextPrompt(prompt) for prompt in msgspec.json.decode(text, type=list[str])]
        if inner.startswith(b"["):
            _check_number(text.count(b"[") - 1, param, most)
            _check_tokens(text, param)
            lists = with_whole_numbers(text, list[list[int]])
            return [_tokens(token_ids, param) for token_ids in lists]
        if inner and not inner.startswith(b"]"):
            _check_tokens(text, param)
            return [_tokens(with_whole_numbers(text, list[int]), param)]
    except msgspec.DecodeError:
        # Falls through to the refusal below.
        pass
    raise invalid(
        f"{param}: send a text, a list of token ids, or a list of several of either; not an empty "
        "one.",
        param,
    )


def count_strings(text: bytes, most: int) -> int:
    """The number of strings in a JSON text; counting stops at `most` + 1."""
    return sum(1 for _ in islice(_STRING.finditer(text), most + 1))


def _check_number(number: int, param: str, most: int) -> None:
    if number > most:
        raise invalid(f"{param}: it has more than {most:,}: send them in several requests.", param)


def _check_tokens(text: bytes, param: str) -> None:
    if text.count(b",") >= _MOST_TOKENS:
        raise Refusal(
            "context_length_exceeded",
            f"{param}: it has more than {_MOST_TOKENS:,} tokens, more than any model here takes.",
            param=param,
        )


def _tokens(token_ids: list[int], param: str) -> TokenPrompt:
    if not token_ids:
        raise msgspec.DecodeError
    if max(token_ids) > LARGEST_TOKEN_ID or min(token_ids) < 0:
        raise invalid(f"{param}: token ids are from 0 to {LARGEST_TOKEN_ID}.", param)
    return TokenPrompt(pack(token_ids))


# OpenAI's default for this path, which its clients rely on.
_DEFAULT_MAX_TOKENS: Final = 16


@refusing("completions")
class CompletionBody(StructuredBody, kw_only=True):
    prompt: Inputs
    # mlx_lm.server's clients send true or false.
    logprobs: Annotated[int, Meta(ge=0, le=20)] | bool | None = None
    best_of: Annotated[int, Meta(ge=1)] | None = None
    echo: bool | None = None
    suffix: str | None = None

    @property
    def answers(self) -> int:
        return self.best_of or super().answers

    @property
    def answers_param(self) -> str:
        return "best_of" if self.best_of else "n"

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None and self.logprobs is not False


class TextCompletionChoice(Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class TextCompletion(Struct):
    """A whole answer, or one event of a stream."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[TextCompletionChoice]
    usage: CompletionUsage | UnsetType | None


@routes.post(
    "/v1/completions",
    Operation(
        "Go on with texts",
        body=CompletionBody,
        answer=TextCompletion,
        events=TextCompletion,
        stream=EVENT_STREAM,
        refusals=GENERATES,
    ),
)
@passing
async def create_completion(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, CompletionBody)
    check_generation(body, "completions")
    _check_best_of(body)
    call = ModelCall(http_request, body.model)
    asked = await request_text(call, functools.partial(_draft, body), "prompt")
    form = CompletionFormat(call.model.id, asked.requests[0], body)
    return asked.submit(form, stream=bool(body.stream))


def _check_best_of(body: CompletionBody) -> None:
    if body.best_of is None:
        return
    wanted = body.n or 1
    if body.best_of < wanted:
        reason = f"it is {body.best_of}, less than n, which is {wanted}"
    elif body.stream and body.best_of > wanted:
        reason = "a stream can't wait for the best: leave out one of the two"
    else:
        return
    raise invalid(f"best_of: {reason}.", "best_of")


def _draft(body: CompletionBody, model: Model) -> RequestDraft:
    body = with_defaults(body, model.settings)
    constraint = constraint_of(body)
    echo = bool(body.echo)
    # `best_of` ranks the answers by their log probabilities.
    logprobs = (
        (0 if body.logprobs is True else body.logprobs or 0)
        if body.wants_logprobs or body.best_of
        else None
    )
    generates = [
        msgspec.structs.replace(
            generate_message(
                body,
                _with_suffix(prompt, body),
                _DEFAULT_MAX_TOKENS if body.asked_limit is None else body.limit,
            ),
            constraint=constraint,
            logprobs=logprobs,
            prompt_logprobs=logprobs if echo and body.wants_logprobs else None,
            echo=echo,
        )
        for prompt in parse_inputs(body.prompt, "prompt", MOST_ANSWERS)
    ]
    return RequestDraft(body, generates)


def _with_suffix(prompt: Prompt, body: CompletionBody) -> Prompt:
    if not body.suffix:
        return prompt
    if not isinstance(prompt, TextPrompt) or body.echo:
        why = "echo" if body.echo else "a prompt of token ids"
        raise invalid(f"suffix: it can't be combined with {why}.", "suffix")
    return TextPrompt(prompt.text, body.suffix)


class CompletionFormat:
    """Writes OpenAI's completion objects."""

    def __init__(self, model_id: str, request: Request, body: CompletionBody) -> None:
        self._id = f"cmpl-{request.id}"
        self._model_id = model_id
        self._request = request
        self._created = int(time.time())
        self._include_usage = body.include_usage
        self._logprobs = body.wants_logprobs
        self._answers = body.answers
        self._wanted = body.n or 1
        self._texts = TextEvents(request)
        # For each choice: how many characters of tokens, and how many prompt tokens, were written.
        self._offsets: Counter[int] = Counter()
        self._prompt_tokens: Counter[int] = Counter()

    def opening(self, index: int) -> bytes:
        return b""

    def piece(self, index: int, piece: AnswerPiece) -> bytes:
        text = only_text(piece)
        if text is not None and not self._logprobs:
            return self._texts.write(
                index,
                text,
                lambda mark: self._event([TextCompletionChoice(index, mark, None, None)]),
            )
        return self._event([self._choice(index, piece.parts, piece.finish_reason)])

    def closing(self, usage: Usage) -> bytes:
        events = self._event([], CompletionUsage.of(usage)) if self._include_usage else b""
        return events + DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        wanted = [
            choice
            for begin in range(0, len(choices), self._answers)
            for choice in self._best(choices[begin : begin + self._answers])
        ]
        return self._json(
            [
                self._choice(index, choice.parts, choice.finish_reason)
                for index, choice in enumerate(wanted)
            ],
            CompletionUsage.of(usage),
        )

    def _best(self, choices: Sequence[Choice]) -> Sequence[Choice]:
        """The choices with the highest mean log probability per token."""
        if self._wanted == len(choices):
            return choices
        return sorted(choices, key=_mean_logprob, reverse=True)[: self._wanted]

    def _choice(
        self, index: int, parts: Sequence[AnswerPart], finish_reason: FinishReason | None
    ) -> TextCompletionChoice:
        text = "".join(part.text for part in parts if isinstance(part, Text))
        logprobs = None
        if self._logprobs:
            tokens: list[TokenLogprob | PromptToken] = [
                *self._prompt(index, parts),
                *tokens_of(parts),
            ]
            logprobs = completion_logprobs(tokens, self._offsets[index])
            self._offsets[index] += sum(map(len, logprobs.tokens))
        return TextCompletionChoice(index, text, logprobs, finish_reason)

    def _prompt(self, index: int, parts: Sequence[AnswerPart]) -> list[PromptToken]:
        """The prompt tokens that were not written yet. A worker that resumes the request sends the
        prompt tokens from the beginning.
        """
        tokens: list[PromptToken] = []
        for part in parts:
            if isinstance(part, PromptLogprobs):
                tokens += part.tokens[max(0, self._prompt_tokens[index] - part.begin) :]
                end = part.begin + len(part.tokens)
                self._prompt_tokens[index] = max(end, self._prompt_tokens[index])
        return tokens

    def _event(
        self, choices: list[TextCompletionChoice], usage: CompletionUsage | None = None
    ) -> bytes:
        return server_sent_event(self._json(choices, usage if self._include_usage else UNSET))

    def _json(
        self, choices: list[TextCompletionChoice], usage: CompletionUsage | UnsetType | None
    ) -> bytes:
        return msgspec.json.encode(
            TextCompletion(
                self._id,
                "text_completion",
                self._created,
                self._model_id,
                system_fingerprint(self._request),
                choices,
                usage,
            )
        )


def _mean_logprob(choice: Choice) -> float:
    tokens = tokens_of(choice.parts)
    return sum(token.logprob for token in tokens) / max(1, len(tokens))
