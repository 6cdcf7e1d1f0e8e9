"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.answer import Answer, server_sent_event
from gateway.api.bodies import beside_the_loop, read_json
from gateway.api.prompt import parse_prompt
from gateway.api.sampling import GenerationBody, check_generation, new_request
from gateway.api.supported import refusing
from gateway.api.usage import UsageBody
from gateway.dispatch.request import Piece
from gateway.fleet.fleet import Fleet
from protocol.messages import FinishReason, Usage
from protocol.parts import AnswerPart, Text

# OpenAI's default for this path, which clients of completions know and rely on.
_DEFAULT_MAX_TOKENS: Final = 16


@refusing("completions")
class CompletionBody(GenerationBody, kw_only=True):
    prompt: Raw


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
    check_generation(body, "completions")
    compartment = fleet.roster.find(body.model)
    max_tokens = body.limit or _DEFAULT_MAX_TOKENS
    prompt = await beside_the_loop(len(body.prompt), parse_prompt, body.prompt)
    generation = new_request(request, fleet, body, prompt, max_tokens)
    fleet.submit(compartment, generation)
    form = CompletionFormat(generation.id, compartment.model.id, include_usage=body.include_usage)
    return Answer(compartment, generation, form, stream=bool(body.stream))


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
        return self._event([Choice(0, _text(piece.parts), None, piece.finish_reason)])

    def closing(self, usage: Usage) -> bytes:
        events = self._event([], UsageBody.of(usage)) if self._include_usage else b""
        return events + server_sent_event(b"[DONE]")

    def whole(
        self, parts: Sequence[AnswerPart], finish_reason: FinishReason, usage: Usage
    ) -> bytes:
        return self._json([Choice(0, _text(parts), None, finish_reason)], UsageBody.of(usage))

    def _event(self, choices: list[Choice], usage: UsageBody | None = None) -> bytes:
        return server_sent_event(self._json(choices, usage if self._include_usage else UNSET))

    def _json(self, choices: list[Choice], usage: UsageBody | UnsetType | None) -> bytes:
        return msgspec.json.encode(
            Completion(self._id, "text_completion", self._created, self._model_id, choices, usage)
        )


def _text(parts: Sequence[AnswerPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


routes = [Route("/v1/completions", create_completion, methods=["POST"])]
