"""Proof that a gateway stays alive: it is asked all the time."""

from __future__ import annotations

import threading
import time
from typing import Final

from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError

_EVERY_S: Final = 0.05


class Pulse:
    """Asks for a sign of life on a thread, as long as the context lasts."""

    def __init__(self, url: str) -> None:
        self.beats = 0
        self.slowest_s = 0.0
        self.missed: str | None = None
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="pulse", daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        with GatewayClient(self._url) as gateway:
            while not self._over.wait(_EVERY_S):
                began_at = time.monotonic()
                try:
                    gateway.get("/livez")
                except CommandError as error:
                    self.missed = error.message
                    return
                self.beats += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - began_at)
