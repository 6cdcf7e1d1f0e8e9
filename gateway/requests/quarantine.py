"""Requests that have killed workers, kept out for a while, however often a client retries."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from protocol.requests import Embed, Task

_QUARANTINE_S: Final = 300.0
_MOST: Final = 16


class Quarantine:
    """Knows a request again by its content. No I/O; the caller brings the time, in seconds."""

    def __init__(self) -> None:
        self._until: deque[tuple[float, Task]] = deque(maxlen=_MOST)

    def add(self, task: Task, now: float) -> None:
        self._until.append((now + _QUARANTINE_S, _content(task)))

    def remaining_s(self, task: Task, now: float) -> float | None:
        """How long the request is kept out yet; None if it may run."""
        while self._until and self._until[0][0] <= now:
            self._until.popleft()
        if not self._until:
            return None
        content = _content(task)
        return max((until - now for until, each in self._until if each == content), default=None)

    def clear(self) -> None:
        self._until.clear()


def _content(task: Task) -> Task:
    """Without what differs when a client sends the same body again, or salts it anew."""
    if isinstance(task, Embed):
        return msgspec.structs.replace(task, request_id="")
    sampling = msgspec.structs.replace(task.sampling, seed=0)
    return msgspec.structs.replace(task, request_id="", sampling=sampling, cache_salt="")
