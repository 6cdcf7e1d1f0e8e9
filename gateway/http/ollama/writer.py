"""Writes Ollama's answers: one JSON object, or a line of JSON for each piece."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.http.generation.tools import arguments_object
from gateway.http.openai.chat_writer import TokenLogprobBody, chat_logprobs, tokens_of
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

_NS_PER_S: Final = 1_000_000_000

DoneReason: TypeAlias = Literal["stop", "length", "load", "unload"]


class OllamaFunctionCall(Struct):
    name: str
    arguments: Raw
    index: int


class OllamaToolCall(Struct):
    id: str
    function: OllamaFunctionCall


class OllamaAnswerMessage(Struct, omit_defaults=True):
    role: str
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET


class Figures(Struct, omit_defaults=True, kw_only=True):
    """The figures of a whole answer. Durations are in nanoseconds: `total_duration` from the
    request's arrival to the end of the answer, `load_duration` from the arrival until a worker had
    the request, `prompt_eval_duration` from then to the first token, `eval_duration` from there on.
    """

    done_reason: DoneReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[TokenLogprobBody] | UnsetType = UNSET


class ChatAnswer(Figures, kw_only=True):
    """A whole answer, or a line of one."""

    model: str
    created_at: str
    message: OllamaAnswerMessage
    done: bool


class GenerateAnswer(Figures, kw_only=True):
    """A whole answer, or a line of one."""

    model: str
    created_at: str
    response: str
    thinking: str | UnsetType = UNSET
    done: bool


class OllamaContent(Struct):
    """The content of a line, or of a whole answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[OllamaToolCall] = []
    logprobs: list[TokenLogprobBody] = []

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls or self.logprobs)


class OllamaFormat:
    """Writes the answer of a request. A call is written only when its arguments are complete, since
    Ollama sends the arguments as an object.
    """

    def __init__(self, name: str, request: Request, *, chat: bool) -> None:
        """`name` is the body's name for the model. With `chat` the answer has the form of
        /api/chat, else of /api/generate.
        """
        self._name = name
        self._request = request
        self._chat = chat
        self._call_id = f"call_{secrets.token_hex(6)}"
        # The call whose arguments are still coming.
        self._call: ToolCall | None = None

    def opening(self, index: int) -> bytes:
        return b""

    def piece(self, index: int, piece: AnswerPiece) -> bytes:
        contents: list[OllamaContent] = []
        for part in piece.parts:
            contents += self._contents(part)
        if piece.finish_reason is not None:
            contents += self._whole_call()
        if tokens := tokens_of(piece.parts):
            contents = contents or [OllamaContent()]
            contents[0].logprobs = chat_logprobs(tokens).content
        return b"".join(self._json(content) + b"\n" for content in contents)

    def closing(self, usage: Usage) -> bytes:
        reason = self._request.finish_reason or "stop"
        return self._json(OllamaContent(), self._figures(usage, reason)) + b"\n"

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        (choice,) = choices
        everything = OllamaContent(
            calls=[], logprobs=chat_logprobs(tokens_of(choice.parts)).content
        )
        for part in choice.parts:
            for content in self._contents(part):
                _add(everything, content)
        for content in self._whole_call():
            _add(everything, content)
        return self._json(everything, self._figures(usage, choice.finish_reason))

    def _contents(self, part: AnswerPart) -> list[OllamaContent]:
        match part:
            case ToolCall(number, arguments, name):
                if self._call is not None and self._call.index == number:
                    before = self._call
                    self._call = ToolCall(number, before.arguments + arguments, before.name)
                    return []
                done = self._whole_call()
                self._call = ToolCall(number, arguments, name)
                return done
            case Text(text):
                return [*self._whole_call(), OllamaContent(text=text)]
            case Reasoning(text):
                return [*self._whole_call(), OllamaContent(reasoning=text)]
            case _:
                return []

    def _whole_call(self) -> list[OllamaContent]:
        call, self._call = self._call, None
        if call is None:
            return []
        function = OllamaFunctionCall(call.name or "", arguments_object(call.arguments), call.index)
        return [OllamaContent(calls=[OllamaToolCall(f"{self._call_id}{call.index:02x}", function)])]

    def _figures(self, usage: Usage, reason: FinishReason) -> Figures:
        request, now = self._request, asyncio.get_running_loop().time()
        begun_at = request.begun_at or now
        answered_at = request.answered_at or now
        return Figures(
            done_reason="length" if reason == "length" else "stop",
            total_duration=nanoseconds(now - request.arrived_at),
            load_duration=nanoseconds(begun_at - request.arrived_at),
            prompt_eval_count=usage.prompt_tokens,
            prompt_eval_duration=nanoseconds(answered_at - begun_at),
            eval_count=usage.completion_tokens,
            eval_duration=nanoseconds(now - answered_at),
        )

    def _json(self, content: OllamaContent, figures: Figures | None = None) -> bytes:
        return written(self._name, content, figures, chat=self._chat)


def written(name: str, content: OllamaContent, figures: Figures | None, *, chat: bool) -> bytes:
    """The content as a JSON object. Only the last object of an answer has `figures`."""
    known = {} if figures is None else msgspec.structs.asdict(figures)
    if content.logprobs:
        known["logprobs"] = content.logprobs
    created_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    done = figures is not None
    thinking = content.reasoning or UNSET
    answer: ChatAnswer | GenerateAnswer
    if chat:
        calls = content.calls or UNSET
        message = OllamaAnswerMessage("assistant", content.text, thinking, calls)
        answer = ChatAnswer(model=name, created_at=created_at, message=message, done=done, **known)
    else:
        answer = GenerateAnswer(
            model=name,
            created_at=created_at,
            response=content.text,
            thinking=thinking,
            done=done,
            **known,
        )
    return msgspec.json.encode(answer)


def _add(whole: OllamaContent, more: OllamaContent) -> None:
    whole.text += more.text
    whole.reasoning += more.reasoning
    whole.calls += more.calls


def nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * _NS_PER_S))
