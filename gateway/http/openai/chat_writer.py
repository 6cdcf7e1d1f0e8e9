"""Writes OpenAI's chat completion objects, and the log probabilities of all APIs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.config.model_settings import ReasoningFields
from gateway.http.wire.answer import DONE, TextEvents, server_sent_event
from gateway.requests.choices import Choice, only_text, system_fingerprint
from gateway.requests.request import AnswerPiece, Request
from protocol.answers import (
    AnswerPart,
    FinishReason,
    Logprobs,
    PromptToken,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCall,
    Usage,
)
from protocol.requests import Generate


class TopLogprobBody(Struct):
    """`bytes` are the bytes of the token, which may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobBody(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprobBody]


class ChatLogprobs(Struct):
    content: list[TokenLogprobBody]
    refusal: None = None


class CompletionLogprobs(Struct):
    """`text_offset` counts characters from the beginning of the text of the choice."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def tokens_of(parts: Sequence[AnswerPart]) -> tuple[TokenLogprob, ...]:
    """The tokens of all parts with log probabilities, in order."""
    return tuple(token for part in parts if isinstance(part, Logprobs) for token in part.tokens)


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs(
        [
            TokenLogprobBody(
                _text(token.text),
                token.logprob,
                list(token.text),
                [
                    TopLogprobBody(_text(top_token.text), top_token.logprob, list(top_token.text))
                    for top_token in token.top
                ],
            )
            for token in tokens
        ]
    )


def completion_logprobs(
    tokens: Sequence[TokenLogprob | PromptToken], offset: int
) -> CompletionLogprobs:
    """`offset` is the text offset of the first token, in characters."""
    texts = [_text(token.text) for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return CompletionLogprobs(
        texts,
        [token.logprob for token in tokens],
        [
            {_text(top_token.text): top_token.logprob for top_token in token.top} or None
            for token in tokens
        ],
        offsets,
    )


def _text(token: bytes) -> str:
    """The text of a token. Bytes that are not UTF-8 are written in OpenAI's way."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


class PromptTokensDetails(Struct):
    """`cached_tokens` of the prompt were in the prompt cache."""

    cached_tokens: int


class CompletionTokensDetails(Struct):
    """`reasoning_tokens` of the answer are reasoning and its tags. `accepted_prediction_tokens` of
    the answer were guessed before they were computed. `rejected_prediction_tokens` are wrong
    guesses, and no part of the answer.
    """

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class CompletionUsage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails

    @classmethod
    def of(cls, usage: Usage) -> CompletionUsage:
        return cls(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens + usage.completion_tokens,
            PromptTokensDetails(usage.cached_tokens),
            CompletionTokensDetails(
                usage.reasoning_tokens, usage.guesses.accepted, usage.guesses.rejected
            ),
        )


class FunctionCall(Struct, omit_defaults=True):
    arguments: str
    name: str | UnsetType = UNSET


class ChatToolCall(Struct):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class CallDelta(Struct, omit_defaults=True):
    index: int
    function: FunctionCall
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatAnswerMessage(Struct, omit_defaults=True):
    """The reasoning may stand twice: `reasoning_content` is DeepSeek's name, `reasoning`
    OpenRouter's, and most clients read one of them.
    """

    role: str
    content: str | None
    refusal: str | None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET


class ChatChoice(Struct):
    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Struct):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChatChoice]
    usage: CompletionUsage


class ChatChunkDelta(Struct, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET


class ChatChunkChoice(Struct):
    index: int
    delta: ChatChunkDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(Struct):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | UnsetType | None


_BOTH: Final = ("reasoning_content", "reasoning")


class ChatForm(Struct):
    """The options of a chat's writer. A kept chat stores them, so that the writer can be made again
    after the gateway has ended. `created` is a Unix time.
    """

    model_id: str
    created: int
    include_usage: bool
    include_reasoning: bool
    reasoning_fields: ReasoningFields = "both"

    def reasoning(self, text: str) -> dict[str, Any]:
        """The fields that have the text of a reasoning."""
        fields = _BOTH if self.reasoning_fields == "both" else (self.reasoning_fields,)
        return dict.fromkeys(fields, text) if self.include_reasoning and text else {}


class ChatFormat:
    """Writes one or more answers to the prompt of `request` as OpenAI's chat completions."""

    def __init__(self, form: ChatForm, request: Request) -> None:
        self._id = f"chatcmpl-{request.id}"
        self._form = form
        self._request = request
        task = request.task
        self._wants_logprobs = isinstance(task, Generate) and task.logprobs is not None
        # Clients may send the same request id twice, and the ids of calls in a conversation must
        # differ.
        self._call_id = f"call_{secrets.token_hex(10)}"
        self._texts = TextEvents(request)

    def opening(self, index: int) -> bytes:
        return self._event([ChatChunkChoice(index, ChatChunkDelta(role="assistant", content=""))])

    def piece(self, index: int, piece: AnswerPiece) -> bytes:
        if (text := only_text(piece)) is not None:
            return self._texts.write(
                index,
                text,
                lambda mark: self._event([ChatChunkChoice(index, ChatChunkDelta(content=mark))]),
            )
        deltas = [delta for part in piece.parts if (delta := self._delta(index, part)) is not None]
        choices = [ChatChunkChoice(index, chat_chunk_delta) for chat_chunk_delta in deltas]
        if tokens := tokens_of(piece.parts):
            # The text of these tokens may come in an earlier or a later piece.
            choices = choices or [ChatChunkChoice(index, ChatChunkDelta(content=""))]
            choices[0].logprobs = chat_logprobs(tokens)
        if piece.finish_reason is not None:
            choices.append(ChatChunkChoice(index, ChatChunkDelta(), None, piece.finish_reason))
        return b"".join(self._event([choice]) for choice in choices)

    def closing(self, usage: Usage) -> bytes:
        events = self._event([], CompletionUsage.of(usage)) if self._form.include_usage else b""
        return events + DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return msgspec.json.encode(
            ChatCompletion(
                self._id,
                "chat.completion",
                self._form.created,
                self._form.model_id,
                system_fingerprint(self._request),
                [self._choice(index, choice) for index, choice in enumerate(choices)],
                CompletionUsage.of(usage),
            )
        )

    def _delta(self, index: int, part: AnswerPart) -> ChatChunkDelta | None:
        match part:
            case Text(text):
                return ChatChunkDelta(content=text)
            case Reasoning(text) if named := self._form.reasoning(text):
                return ChatChunkDelta(**named)
            case ToolCall(number, arguments, None):
                return ChatChunkDelta(tool_calls=[CallDelta(number, FunctionCall(arguments))])
            case ToolCall(number, arguments, str() as name):
                function = FunctionCall(arguments, name)
                call = CallDelta(number, function, self._id_of(index, number), "function")
                return ChatChunkDelta(tool_calls=[call])
            case _:
                return None

    def _choice(self, index: int, choice: Choice) -> ChatChoice:
        text, reasoning = "", ""
        calls: dict[int, ChatToolCall] = {}
        for part in choice.parts:
            match part:
                case Text(more):
                    text += more
                case Reasoning(more):
                    reasoning += more
                case ToolCall(number, arguments, name):
                    call = ChatToolCall(self._id_of(index, number), FunctionCall("", name or ""))
                    calls.setdefault(number, call).function.arguments += arguments
        message = ChatAnswerMessage(
            "assistant",
            # OpenAI writes null for an empty text beside calls.
            text if text or not calls else None,
            None,
            tool_calls=list(calls.values()) or UNSET,
            **self._form.reasoning(reasoning),
        )
        tokens = tokens_of(choice.parts)
        logprobs = chat_logprobs(tokens) if tokens or self._wants_logprobs else None
        return ChatChoice(index, message, logprobs, choice.finish_reason)

    def _id_of(self, index: int, number: int) -> str:
        return f"{self._call_id}{index:02x}{number:02x}"

    def _event(self, choices: list[ChatChunkChoice], usage: CompletionUsage | None = None) -> bytes:
        return server_sent_event(
            msgspec.json.encode(
                ChatChunk(
                    self._id,
                    "chat.completion.chunk",
                    self._form.created,
                    self._form.model_id,
                    system_fingerprint(self._request),
                    choices,
                    usage if self._form.include_usage else UNSET,
                )
            )
        )
