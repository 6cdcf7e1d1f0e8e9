"""Asks the gateway, again and again, on a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from gateway.cli.bodies import EventReading, GatewayReading
from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError
from gateway.cli.top.happenings import Happening

_EVERY_S: Final = 1.0
# As many as any screen shows; they come with every answer, so that no stream has to be kept alive.
_EVENTS: Final = 100
_PATIENCE_S: Final = 1.0


class Seen(Struct, frozen=True):
    reading: GatewayReading
    happenings: tuple[Happening, ...]


class Lost(Struct, frozen=True):
    """The gateway didn't answer, or not as one; the text is a sentence."""

    why: str


class Feed:
    """Tells once a second what it got, on its own thread, from `start` to `stop`.

    An error that is no answer of the gateway is told, too, and ends it.
    """

    def __init__(
        self, gateway: GatewayClient, tell: Callable[[Seen | Lost | Exception], None]
    ) -> None:
        self._gateway = gateway
        self._tell = tell
        self._over = threading.Event()
        # A daemon: no answer that is still to come keeps the command from ending.
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._tell(self._ask())
                self._over.wait(_EVERY_S)
        except Exception as error:
            self._tell(error)

    def _ask(self) -> Seen | Lost:
        try:
            reading = self._gateway.status()
            with self._gateway.events(_EVENTS, follow=False) as events:
                told = tuple(
                    self._happening(each.data) for each in events if each.kind != "comment"
                )
        except CommandError as error:
            return Lost(error.message)
        return Seen(reading, told)

    def _happening(self, data: str) -> Happening:
        event = self._gateway.read(data, EventReading)
        fields: dict[str, Any] = msgspec.json.decode(data)
        return Happening(event, fields)
