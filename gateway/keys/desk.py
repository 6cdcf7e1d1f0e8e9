"""What runs under one key: counted against its limits, and cut off when it is revoked."""

from __future__ import annotations

import asyncio

from gateway.keys.api_key import ApiKey
from gateway.keys.limits import Limits


class Desk:
    """`digest` tells the key from a later one of the same name. `revoked` says why those tasks were
    cancelled that were at work here.
    """

    def __init__(self, key: ApiKey) -> None:
        self.name = key.name
        self.digest = key.digest
        self.owner = key.owner
        self.limits = Limits(key)
        self.revoked = False
        self._tasks: set[asyncio.Task[None]] = set()

    def configure(self, key: ApiKey) -> None:
        self.limits.terms = key

    def enter(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)

    def leave(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)

    def close(self) -> None:
        """The key opens nothing any more, from now on."""
        self.revoked = True
        for task in self._tasks:
            task.cancel()
