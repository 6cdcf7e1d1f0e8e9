"""What runs under one key: cut off when that opens nothing any more, and bound by its limits."""

from __future__ import annotations

import asyncio

from gateway.access.api_key import ApiKey
from gateway.access.limits import Limits


class Desk:
    """`closed` says why those tasks were cancelled that were at work here."""

    def __init__(self) -> None:
        self.closed: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def enter(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)

    def leave(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)

    def close(self, reason: str) -> None:
        """Nobody gets in here any more, from now on."""
        self.closed = reason
        for task in self._tasks:
            task.cancel()


class KeyDesk(Desk):
    """`digest` tells the key from a later one of the same name."""

    def __init__(self, key: ApiKey) -> None:
        super().__init__()
        self.name = key.name
        self.digest = key.digest
        self.owner = key.owner
        self.limits = Limits(key)

    def configure(self, key: ApiKey) -> None:
        self.limits.terms = key
