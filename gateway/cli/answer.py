"""Streaming one answer of a chat."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator, Iterable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from gateway.cli.client import STREAM, GatewayClient
from gateway.cli.failure import CommandError
from gateway.http.command_bodies import OpenAIErrorEnvelope
from gateway.system.notation import nearest, suggestion


class Parameters(Struct, frozen=True, omit_defaults=True):
    """By the API's names; null leaves it to the model. The descriptions are for people."""

    temperature: (
        Annotated[float, Meta(ge=0, le=2, description="0: always the likeliest word")] | None
    ) = None
    max_tokens: Annotated[int, Meta(ge=1, description="longest answer")] | None = None
    top_p: (
        Annotated[float, Meta(ge=0, le=1, description="the likeliest, up to this share")] | None
    ) = None
    top_k: Annotated[int, Meta(ge=0, description="so many of the likeliest")] | None = None
    min_p: (
        Annotated[float, Meta(ge=0, le=1, description="as likely, beside the likeliest")] | None
    ) = None
    seed: Annotated[int, Meta(description="the same one draws the same answer")] | None = None
    stop: (
        Annotated[tuple[str, ...], Meta(max_length=16, description="texts that end the answer")]
        | None
    ) = None
    repetition_penalty: (
        Annotated[float, Meta(ge=0, le=10, description="1: none; more repeats less")] | None
    ) = None
    frequency_penalty: (
        Annotated[float, Meta(ge=-2, le=2, description="for each time that it was said")] | None
    ) = None
    presence_penalty: (
        Annotated[float, Meta(ge=-2, le=2, description="for having been said")] | None
    ) = None
    reasoning_effort: (
        Annotated[
            Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"],
            Meta(description="how much it thinks; none: not at all"),
        ]
        | None
    ) = None


NAMES: Final = Parameters.__struct_fields__


class ParameterError(Exception):
    """A sentence for whoever has set it."""


def with_parameter(present: Parameters, name: str, text: str | None) -> Parameters:
    """The same with another value, as it is typed; None takes it back.

    Raises:
        ParameterError: there is no such parameter, or it can't have that value.
    """
    if name not in NAMES:
        raise ParameterError(
            f"There is no parameter {name!r}.{suggestion(nearest(name, NAMES))} /set shows them."
        )
    try:
        values = {name: None if text is None else _value(name, text)}
        # Text is taken for what the field has.
        read = msgspec.convert(values, Parameters, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        why = str(error).partition(" - at ")[0].replace("`", "").replace(" | null", "")
        raise ParameterError(f"{name} can't be {text!r}: {why[:1].lower()}{why[1:]}.") from None
    return msgspec.structs.replace(present, **{name: getattr(read, name)})


def shown(parameters: Parameters) -> list[tuple[str, str, str]]:
    """Name, value and meaning of each; a value that isn't set is empty."""
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
    for each in field.type.types:
        if isinstance(each, msgspec.inspect.Metadata):
            return str((each.extra_json_schema or {}).get("description", ""))
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


class _StreamedChoice(Struct, frozen=True):
    delta: _Delta
    finish_reason: str | None = None


class _StreamedChunk(Struct, frozen=True):
    choices: tuple[_StreamedChoice, ...]


class StreamedPiece(Struct, frozen=True):
    """Of the answer itself, or of what the model thinks before it."""

    kind: Literal["text", "reasoning"]
    text: str


class Ending(Struct, frozen=True):
    """Why it is over, by OpenAI's names: stop, length."""

    reason: str


def stream_answer(
    gateway: GatewayClient,
    model_id: str,
    messages: Iterable[TextMessage],
    parameters: Parameters,
    on_wait: Callable[[], None] = lambda: None,
) -> Generator[StreamedPiece | Ending, None, None]:
    """What comes of an answer; `on_wait` is called when only time has passed.

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
                    if choice.delta.reasoning_content:
                        yield StreamedPiece("reasoning", choice.delta.reasoning_content)
                    if choice.delta.content:
                        yield StreamedPiece("text", choice.delta.content)
                    if choice.finish_reason:
                        yield Ending(choice.finish_reason)
    raise CommandError("The answer broke off before its end.")
