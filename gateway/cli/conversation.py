"""Streaming one answer of a chat."""

from __future__ import annotations

from collections.abc import Callable, Generator

from gateway.cli.bodies import ChatRequest, Chunk, ErrorEnvelope
from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError


def stream_answer(
    gateway: GatewayClient, request: ChatRequest, on_wait: Callable[[], None]
) -> Generator[str, None, None]:
    """The pieces of an answer as they come; `on_wait` is called when only time has passed.

    Raises:
        CommandError: the request was refused, or the answer broke off.
    """
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
                    yield choice.delta.content or ""
    raise CommandError("The answer broke off before its end.")
