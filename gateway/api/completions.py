"""POST /v1/completions."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.answer import Answer, server_sent_event
from gateway.api.bodies import read_json
from gateway.api.sampling import GenerationBody, check_supported, new_request
from gateway.api.usage import UsageBody
from gateway.dispatch.refusal import Refusal
from gateway.dispatch.request import Piece
from gateway.supervise.fleet import Fleet
from protocol.messages import FinishReason, Prompt, TextPrompt, TokenPrompt, Usage
from protocol.tokens import LARGEST_TOKEN_ID, pack

# OpenAI's default for this path, which clients of completions know and rely on.
_DEFAULT_MAX_TOKENS: Final = 16
# Checked one by one, so their number is checked first.
_MOST_TOKENS: Final = 2_000_000


class CompletionBody(GenerationBody, kw_only=True):
    prompt: Any


class Choice(Struct):
    index: int
    text: str
    logprobs: None
    finish_reason: FinishReason | None


class Completion(Struct):
    """A whole answer, or one event of a streamed one."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: UsageBody | UnsetType | None


async def create_completion(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    body = await read_json(request, CompletionBody)
    check_supported(body)
    compartment = fleet.roster.find(body.model)
    max_tokens = body.max_tokens or _DEFAULT_MAX_TOKENS
    generation = new_request(request, fleet, body, _prompt(body.prompt), max_tokens)
    fleet.submit(compartment, generation)
    form = CompletionFormat(generation.id, compartment.model.id, include_usage=body.include_usage)
    return Answer(compartment, generation, form, stream=bool(body.stream))


def _prompt(value: object) -> Prompt:
    """A text, a list of token ids, or a list of one of either."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return TextPrompt(value)
    if isinstance(value, list) and len(value) > _MOST_TOKENS:
        raise Refusal(
            "context_length_exceeded",
            f"prompt: it has {len(value):,} tokens, more than any model here takes.",
            param="prompt",
        )
    if isinstance(value, list) and value and all(type(each) is int for each in value):
        if max(value) > LARGEST_TOKEN_ID or min(value) < 0:
            raise Refusal(
                "invalid_request_error",
                f"prompt: token ids are from 0 to {LARGEST_TOKEN_ID}.",
                param="prompt",
            )
        return TokenPrompt(pack(value))
    raise Refusal(
        "invalid_request_error",
        "prompt: send one text or one list of token ids; for several prompts send several "
        "requests.",
        param="prompt",
    )


class CompletionFormat:
    """OpenAI's completion objects."""

    def __init__(self, request_id: str, model_id: str, *, include_usage: bool) -> None:
        self._id = f"cmpl-{request_id}"
        self._model_id = model_id
        self._created = int(time.time())
        self._include_usage = include_usage

    def opening(self) -> bytes:
        return b""

    def piece(self, piece: Piece) -> bytes:
        return self._event([Choice(0, piece.text, None, piece.finish_reason)])

    def closing(self, usage: Usage) -> bytes:
        events = self._event([], UsageBody.of(usage)) if self._include_usage else b""
        return events + server_sent_event(b"[DONE]")

    def whole(self, text: str, finish_reason: FinishReason, usage: Usage) -> bytes:
        return self._json([Choice(0, text, None, finish_reason)], UsageBody.of(usage))

    def _event(self, choices: list[Choice], usage: UsageBody | None = None) -> bytes:
        return server_sent_event(self._json(choices, usage if self._include_usage else UNSET))

    def _json(self, choices: list[Choice], usage: UsageBody | UnsetType | None) -> bytes:
        return msgspec.json.encode(
            Completion(self._id, "text_completion", self._created, self._model_id, choices, usage)
        )


routes = [Route("/v1/completions", create_completion, methods=["POST"])]
