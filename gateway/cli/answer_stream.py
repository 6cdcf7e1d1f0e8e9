"""Streaming one answer of a chat."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from gateway.cli.bodies import ChatMessage, Chunk, ErrorEnvelope
from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError
from gateway.cli.parameters import Parameters


class ChatRequest(Parameters, frozen=True, kw_only=True, omit_defaults=True):
    model: str
    messages: tuple[ChatMessage, ...]
    stream: bool = False


class Piece(Struct, frozen=True):
    """Of the answer itself, or of what the model thinks before it."""

    kind: Literal["text", "reasoning"]
    text: str


class Ending(Struct, frozen=True):
    """Why it is over, by OpenAI's names: stop, length."""

    reason: str


def stream_answer(
    gateway: GatewayClient,
    model_id: str,
    messages: Iterable[ChatMessage],
    parameters: Parameters,
    on_wait: Callable[[], None] = lambda: None,
) -> Generator[Piece | Ending, None, None]:
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
    with gateway.chat(request) as events:
        for event in events:
            if event.kind == "comment":
                on_wait()
            elif event.kind == "error":
                raise CommandError(gateway.read(event.data, ErrorEnvelope).error.message)
            elif event.data == "[DONE]":
                return
            else:
                for choice in gateway.read(event.data, Chunk).choices:
                    if choice.delta.reasoning_content:
                        yield Piece("reasoning", choice.delta.reasoning_content)
                    if choice.delta.content:
                        yield Piece("text", choice.delta.content)
                    if choice.finish_reason:
                        yield Ending(choice.finish_reason)
    raise CommandError("The answer broke off before its end.")
