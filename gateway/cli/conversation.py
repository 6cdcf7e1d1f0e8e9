"""A conversation with a model: its parameters, its messages, and the stream of each answer."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Generator, Iterable
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
from msgspec import Meta, Struct

from gateway.cli.client import STREAM, GatewayClient
from gateway.cli.failure import CommandError
from gateway.http.wire.command_bodies import OpenAIErrorEnvelope
from gateway.system.notation import nearest, suggestion


class Parameters(Struct, frozen=True, omit_defaults=True):
    """A request's parameters, by the API's names. None leaves a parameter to the model."""

    temperature: (
        Annotated[float, Meta(ge=0, le=2, description="0: always the likeliest word")] | None
    ) = None
    max_tokens: Annotated[int, Meta(ge=1, description="longest answer")] | None = None
    top_p: (
        Annotated[float, Meta(ge=0, le=1, description="the likeliest, up to this share")] | None
    ) = None
    top_k: Annotated[int, Meta(ge=0, description="the likeliest, up to this number")] | None = None
    min_p: (
        Annotated[float, Meta(ge=0, le=1, description="at least this share of the best")] | None
    ) = None
    seed: Annotated[int, Meta(description="the same seed draws the same answer")] | None = None
    stop: (
        Annotated[tuple[str, ...], Meta(max_length=16, description="texts that end the answer")]
        | None
    ) = None
    repetition_penalty: (
        Annotated[float, Meta(ge=0, le=10, description="1: none; more repeats less")] | None
    ) = None
    frequency_penalty: (
        Annotated[float, Meta(ge=-2, le=2, description="against a token, for each use")] | None
    ) = None
    presence_penalty: (
        Annotated[float, Meta(ge=-2, le=2, description="against a token that was used")] | None
    ) = None
    reasoning_effort: (
        Annotated[
            Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"],
            Meta(description="how much the model thinks; none: not at all"),
        ]
        | None
    ) = None


NAMES: Final = Parameters.__struct_fields__


class ParameterError(Exception):
    """The parameter can't be set; the message is a sentence."""


def with_parameter(present: Parameters, name: str, text: str | None) -> Parameters:
    """A copy of `present` in which the parameter `name` has the value of the typed `text`. A text
    of None leaves the parameter to the model again.

    Raises:
        ParameterError: there is no such parameter, or it can't have this value.
    """
    if name not in NAMES:
        raise ParameterError(
            f"There is no parameter {name!r}.{suggestion(nearest(name, NAMES))} /set shows them."
        )
    try:
        values = {name: None if text is None else _value(name, text)}
        # Not strict, so that the text is converted to the type of the field.
        read = msgspec.convert(values, Parameters, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        why = str(error).partition(" - at ")[0].replace("`", "").replace(" | null", "")
        raise ParameterError(f"{name} can't be {text!r}: {why[:1].lower()}{why[1:]}.") from None
    return msgspec.structs.replace(present, **{name: getattr(read, name)})


def shown(parameters: Parameters) -> list[tuple[str, str, str]]:
    """The name, value and meaning of each parameter. A value that isn't set is empty."""
    rows = []
    for field in msgspec.inspect.type_info(Parameters).fields:  # type: ignore[attr-defined]
        value = getattr(parameters, field.name)
        rows.append((field.name, "" if value is None else _written(value), _meaning(field)))
    return rows


def _value(name: str, text: str) -> Any:
    return shlex.split(text) if name == "stop" else text


def _written(value: Any) -> str:
    return shlex.join(value) if isinstance(value, tuple) else str(value)


def _meaning(field: Any) -> str:
    for kind in field.type.types:
        if isinstance(kind, msgspec.inspect.Metadata):
            return str((kind.extra_json_schema or {}).get("description", ""))
    return ""


class TextMessage(Struct, frozen=True):
    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(Parameters, frozen=True, kw_only=True, omit_defaults=True):
    model: str
    messages: tuple[TextMessage, ...]
    stream: bool = False


class _Delta(Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _StreamedChoice(Struct, frozen=True):
    delta: _Delta
    finish_reason: str | None = None


class _StreamedChunk(Struct, frozen=True):
    choices: tuple[_StreamedChoice, ...]


class StreamedPiece(Struct, frozen=True):
    """A piece of the answer, or of the reasoning before it."""

    kind: Literal["text", "reasoning"]
    text: str


class Ending(Struct, frozen=True):
    """The end of an answer; `reason` is OpenAI's name for the cause: stop, length."""

    reason: str


def stream_answer(
    gateway: GatewayClient,
    model_id: str,
    messages: Iterable[TextMessage],
    parameters: Parameters,
    on_wait: Callable[[], None] = lambda: None,
) -> Generator[StreamedPiece | Ending, None, None]:
    """Yield the pieces of an answer, then its ending. `on_wait` is called for each comment: the
    gateway sends comments while the request waits.

    Raises:
        CommandError: the request was refused, or the answer broke off.
    """
    request = ChatRequest(
        model=model_id,
        messages=tuple(messages),
        stream=True,
        **msgspec.structs.asdict(parameters),
    )
    with gateway.stream("POST", "/v1/chat/completions", request, STREAM) as events:
        for event in events:
            if event.kind == "comment":
                on_wait()
            elif event.kind == "error":
                raise CommandError(gateway.read(event.data, OpenAIErrorEnvelope).error.message)
            elif event.data == "[DONE]":
                return
            else:
                for choice in gateway.read(event.data, _StreamedChunk).choices:
                    if reasoning := choice.delta.reasoning_content or choice.delta.reasoning:
                        yield StreamedPiece("reasoning", reasoning)
                    if choice.delta.content:
                        yield StreamedPiece("text", choice.delta.content)
                    if choice.finish_reason:
                        yield Ending(choice.finish_reason)
    raise CommandError("The answer broke off before its end.")


class Transcript(Protocol):
    def write(self, piece: StreamedPiece) -> None: ...

    def remark(self, text: str) -> None:
        """Print a remark about the answer."""

    def close(self) -> None:
        """End the printed answer, complete or not."""


class Conversation:
    """A chat with a model: the messages so far and the settings. `system`, `parameters` and
    `model_id` may be changed between answers.
    """

    def __init__(
        self, gateway: GatewayClient, model_id: str, system: str | None, parameters: Parameters
    ) -> None:
        self.model_id = model_id
        self.system = system
        self.parameters = parameters
        self._gateway = gateway
        self._messages: list[TextMessage] = []
        # The last question, if it has no answer among the messages.
        self._unanswered: str | None = None

    def ask(self, text: str, transcript: Transcript) -> None:
        """Ask the model, and print the answer as it comes. Question and answer are then added to
        the messages; after Ctrl-C, the question and the part of the answer that came. Nothing is
        added if the answer has no text or broke off.

        Raises:
            CommandError: there was no answer, or it broke off.
        """
        question = TextMessage("user", text)
        self._unanswered = text
        pieces: list[str] = []
        try:
            cut_off = self._stream(question, pieces, transcript)
        except KeyboardInterrupt:
            self._remember(question, pieces)
            raise
        finally:
            transcript.close()
        self._remember(question, pieces)
        if cut_off:
            transcript.remark("(cut off: it has as many tokens as it may)")

    def retry(self, transcript: Transcript) -> bool:
        """Ask the last question once more. Return False if nothing was asked yet. The earlier
        answer stays among the messages if no other answer comes.

        Raises:
            CommandError: as `ask`.
        """
        if self._unanswered is not None:
            self.ask(self._unanswered, transcript)
            return True
        if not self._messages:
            return False
        before = self._messages
        self._messages = before[:-2]
        try:
            self.ask(before[-2].content, transcript)
        finally:
            if len(self._messages) < len(before):
                self._messages = before
                self._unanswered = None
        return True

    def clear(self) -> None:
        """Forget the messages; model, system message and parameters stay."""
        self._messages = []
        self._unanswered = None

    def _stream(self, question: TextMessage, pieces: list[str], transcript: Transcript) -> bool:
        """Print the answer; `pieces` gets its text. Return True if max_tokens cut the answer."""
        cut_off = False
        shown_state: str | None = None

        def show_state() -> None:
            """Print the state of the model, unless the state is ready or was printed last."""
            nonlocal shown_state
            state = self._gateway.model(self.model_id).state
            if state not in (shown_state, "ready"):
                shown_state = state
                doing = "another worker goes on with the answer" if pieces else "waiting"
                transcript.remark(f"({doing}: {self.model_id} is {state}...)")

        system = [] if self.system is None else [TextMessage("system", self.system)]
        messages = [*system, *self._messages, question]
        streamed = stream_answer(
            self._gateway, self.model_id, messages, self.parameters, show_state
        )
        with contextlib.closing(streamed) as answer:
            for part in answer:
                if isinstance(part, Ending):
                    cut_off = part.reason == "length"
                    continue
                transcript.write(part)
                if part.kind == "text":
                    pieces.append(part.text)
        return cut_off

    def _remember(self, question: TextMessage, pieces: list[str]) -> None:
        if pieces:
            self._messages += [question, TextMessage("assistant", "".join(pieces))]
            self._unanswered = None
