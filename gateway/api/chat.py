"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.answer import Answer, server_sent_event
from gateway.api.bodies import Part, beside_the_loop, read_json
from gateway.api.sampling import GenerationBody, check_generation, new_request
from gateway.api.supported import check_supported, refusing
from gateway.api.usage import UsageBody
from gateway.dispatch.refusal import Refusal
from gateway.dispatch.request import Piece
from gateway.fleet.fleet import Fleet
from protocol.messages import ChatMessage, ChatPrompt, FinishReason, Usage
from protocol.parts import AnswerPart, Text

# Each takes some tokens in every template.
_MOST_MESSAGES: Final = 200_000


@refusing("part")
class ContentPart(Part):
    type: str
    text: str | None = None


@refusing("message")
class MessageBody(Part):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Meta(min_length=1)] | None = None


@refusing("chat")
class ChatBody(GenerationBody, kw_only=True):
    messages: Annotated[list[MessageBody], Meta(min_length=1)]


class AnswerMessage(Struct):
    role: str
    content: str


class Choice(Struct):
    index: int
    message: AnswerMessage
    logprobs: None
    finish_reason: FinishReason


class ChatCompletion(Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: UsageBody


class ChunkDelta(Struct, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(Struct):
    index: int
    delta: ChunkDelta
    logprobs: None = None
    finish_reason: FinishReason | None = None


class Chunk(Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageBody | UnsetType | None


async def create_chat_completion(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    body = await read_json(request, ChatBody)
    check_generation(body, "chat")
    compartment = fleet.roster.find(body.model)
    prompt = await beside_the_loop(request.state.body_bytes, _prompt, body.messages)
    generation = new_request(request, fleet, body, prompt, body.limit)
    fleet.submit(compartment, generation)
    form = ChatFormat(generation.id, compartment.model.id, include_usage=body.include_usage)
    return Answer(compartment, generation, form, stream=bool(body.stream))


def _prompt(messages: list[MessageBody]) -> ChatPrompt:
    if len(messages) > _MOST_MESSAGES:
        raise Refusal(
            "context_length_exceeded",
            f"messages: there are {len(messages):,}, more than any model here takes.",
            param="messages",
        )
    return ChatPrompt(tuple(_message(index, each) for index, each in enumerate(messages)))


def _message(index: int, body: MessageBody) -> ChatMessage:
    path = f"messages[{index}]."
    check_supported(body, "message", path)
    if body.content is None and body.role != "assistant":
        raise Refusal(
            "invalid_request_error",
            f"{path}content is missing or null: only an assistant's message may have none. Send a "
            "text, which may be empty.",
            param=f"{path}content",
        )
    # Templates know the role by its older name.
    role = "system" if body.role == "developer" else body.role
    if not isinstance(body.content, list):
        return ChatMessage(role, body.content or "")
    for place, part in enumerate(body.content):
        check_supported(part, "part", f"{path}content[{place}].")
        if part.type != "text" or part.text is None:
            raise Refusal(
                "invalid_request_error",
                f"A content part of type {part.type!r}: only text parts are supported.",
                param=f"messages[{index}].content[{place}]",
            )
    return ChatMessage(role, "".join(part.text or "" for part in body.content))


class ChatFormat:
    """OpenAI's chat completion objects."""

    def __init__(self, request_id: str, model_id: str, *, include_usage: bool) -> None:
        self._id = f"chatcmpl-{request_id}"
        self._model_id = model_id
        self._created = int(time.time())
        self._include_usage = include_usage

    def opening(self) -> bytes:
        return self._event([ChunkChoice(0, ChunkDelta(role="assistant", content=""))])

    def piece(self, piece: Piece) -> bytes:
        events = b""
        for part in piece.parts:
            if isinstance(part, Text):
                events += self._event([ChunkChoice(0, ChunkDelta(content=part.text))])
        if piece.finish_reason is not None:
            events += self._event([ChunkChoice(0, ChunkDelta(), None, piece.finish_reason)])
        return events

    def closing(self, usage: Usage) -> bytes:
        events = self._event([], UsageBody.of(usage)) if self._include_usage else b""
        return events + server_sent_event(b"[DONE]")

    def whole(
        self, parts: Sequence[AnswerPart], finish_reason: FinishReason, usage: Usage
    ) -> bytes:
        text = "".join(part.text for part in parts if isinstance(part, Text))
        message = AnswerMessage("assistant", text)
        return msgspec.json.encode(
            ChatCompletion(
                self._id,
                "chat.completion",
                self._created,
                self._model_id,
                [Choice(0, message, None, finish_reason)],
                UsageBody.of(usage),
            )
        )

    def _event(self, choices: list[ChunkChoice], usage: UsageBody | None = None) -> bytes:
        return server_sent_event(
            msgspec.json.encode(
                Chunk(
                    self._id,
                    "chat.completion.chunk",
                    self._created,
                    self._model_id,
                    choices,
                    usage if self._include_usage else UNSET,
                )
            )
        )


routes = [Route("/v1/chat/completions", create_chat_completion, methods=["POST"])]
