"""Writes Anthropic's message objects and events."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Self, TypeAlias

import msgspec
from msgspec import Raw, Struct

from gateway.http.anthropic.diagnostics import Diagnostics
from gateway.http.generation.tools import arguments_object
from gateway.requests.choices import Choice
from gateway.requests.request import AnswerPiece, Request
from protocol.answers import (
    AnswerPart,
    FinishReason,
    Reasoning,
    Text,
    ToolCall,
    Usage,
)

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]

_STOP_REASONS: Final[dict[FinishReason, StopReason]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}
# Clients send the signature back with the reasoning. The signature is not checked.
_SIGNATURE: Final = "bulkhead"


class AnthropicOutputDetails(Struct):
    """`thinking_tokens` of the output are reasoning and its tags."""

    thinking_tokens: int


class DeltaUsage(Struct):
    """The usage of an answer. `input_tokens` leaves out the tokens that were in the prompt cache;
    OpenAI's count of the prompt includes these tokens.
    """

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    output_tokens_details: AnthropicOutputDetails
    cache_creation_input_tokens: int = 0
    server_tool_use: None = None

    @classmethod
    def of(cls, usage: Usage) -> Self:
        return cls(
            usage.prompt_tokens - usage.cached_tokens,
            usage.completion_tokens,
            usage.cached_tokens,
            AnthropicOutputDetails(usage.reasoning_tokens),
        )


class AnthropicUsage(DeltaUsage):
    """It has the fields that only Anthropic fills, too, since strict decoders require them."""

    cache_creation: None = None
    inference_geo: None = None
    service_tier: Literal["standard"] = "standard"
    speed: Literal["standard"] = "standard"


class AnswerTextBlock(Struct, tag_field="type", tag="text"):
    text: str
    citations: tuple[()] = ()


class AnswerThinkingBlock(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class DirectCaller(Struct, frozen=True, tag_field="type", tag="direct"):
    """Says that the model itself made the call, not a program that it wrote."""


class AnswerToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Raw
    caller: DirectCaller = DirectCaller()


AnswerBlock: TypeAlias = AnswerTextBlock | AnswerThinkingBlock | AnswerToolUseBlock


class AnthropicMessage(Struct, tag_field="type", tag="message"):
    id: str
    role: str
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: AnthropicUsage
    stop_details: None = None
    container: None = None
    diagnostics: Diagnostics | None = None


class MessageDelta(Struct):
    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None = None
    container: None = None


class MessageFormat:
    """Writes one answer as Anthropic's message, streamed or whole. `diagnose` is called once the
    prompt is known.
    """

    def __init__(
        self, model_id: str, request: Request, diagnose: Callable[[], Diagnostics | None]
    ) -> None:
        self._diagnose = diagnose
        self._id = f"msg_{request.id}"
        self._model_id = model_id
        self._request = request
        # The ids of calls must differ within a conversation. A client may send the same request id
        # twice, so the ids of calls are not made from the request id.
        self._call_id = f"toolu_{secrets.token_hex(10)}"
        # The number of blocks that were begun, and the kind of the block that is open.
        self._begun = 0
        self._open: str | None = None

    def opening(self, index: int) -> bytes:
        usage = AnthropicUsage.of(Usage(self._request.progress.prompt_tokens, 0))
        return _event("message_start", message=self._message([], None, usage)) + _event("ping")

    def piece(self, index: int, piece: AnswerPiece) -> bytes:
        events = b"".join(map(self._part, piece.parts))
        if piece.finish_reason is not None:
            events += self._close()
        return events

    def closing(self, usage: Usage) -> bytes:
        reason = self._request.finish_reason or "stop"
        stop_sequence = self._request.stop_sequence
        delta = MessageDelta(_stop_reason(reason, stop_sequence), stop_sequence)
        return _event("message_delta", delta=delta, usage=DeltaUsage.of(usage)) + _event(
            "message_stop"
        )

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        (choice,) = choices
        blocks: list[AnswerBlock] = []
        calls: dict[int, AnswerToolUseBlock] = {}
        arguments: defaultdict[int, str] = defaultdict(str)
        for part in choice.parts:
            match part:
                case Text(text) if text.strip():
                    blocks.append(AnswerTextBlock(text))
                case Reasoning(text):
                    blocks.append(AnswerThinkingBlock(text, _SIGNATURE))
                case ToolCall(number, more, name):
                    arguments[number] += more
                    if number not in calls:
                        block = AnswerToolUseBlock(self._id_of(number), name or "", Raw(b"{}"))
                        calls[number] = block
                        blocks.append(block)
        for number, call in calls.items():
            call.input = arguments_object(arguments[number])
        return msgspec.json.encode(
            self._message(blocks, choice.finish_reason, AnthropicUsage.of(usage))
        )

    def _message(
        self, blocks: list[AnswerBlock], reason: FinishReason | None, usage: AnthropicUsage
    ) -> AnthropicMessage:
        stop_sequence = self._request.stop_sequence
        return AnthropicMessage(
            self._id,
            "assistant",
            self._model_id,
            blocks,
            None if reason is None else _stop_reason(reason, stop_sequence),
            None if reason is None else stop_sequence,
            usage,
            diagnostics=self._diagnose(),
        )

    def _part(self, part: AnswerPart) -> bytes:
        match part:
            case Text(text):
                events = self._start_block("text", AnswerTextBlock(""))
                return events + self._delta(type="text_delta", text=text)
            case Reasoning(text):
                events = self._start_block("thinking", AnswerThinkingBlock("", ""))
                return events + self._delta(type="thinking_delta", thinking=text)
            case ToolCall(number, arguments, name):
                block = AnswerToolUseBlock(self._id_of(number), name or "", Raw(b"{}"))
                events = self._start_block(f"call {number}", block)
                if arguments:
                    events += self._delta(type="input_json_delta", partial_json=arguments)
                return events
            case _:
                return b""

    def _start_block(self, kind: str, block: AnswerBlock) -> bytes:
        """End the open block and begin `block`, unless a block of `kind` is open already."""
        if self._open == kind:
            return b""
        events = self._close()
        self._open = kind
        self._begun += 1
        return events + _event("content_block_start", index=self._begun - 1, content_block=block)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        events = b""
        if self._open == "thinking":
            events = self._delta(type="signature_delta", signature=_SIGNATURE)
        self._open = None
        return events + _event("content_block_stop", index=self._begun - 1)

    def _delta(self, **delta: str) -> bytes:
        return _event("content_block_delta", index=self._begun - 1, delta=delta)

    def _id_of(self, number: int) -> str:
        return f"{self._call_id}{number:02x}"


class Count(Struct):
    input_tokens: int


def _stop_reason(reason: FinishReason, stop_sequence: str | None) -> StopReason:
    return "stop_sequence" if stop_sequence is not None else _STOP_REASONS[reason]


def _event(name: str, **fields: Any) -> bytes:
    data = msgspec.json.encode({"type": name, **fields})
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
