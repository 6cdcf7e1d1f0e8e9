"""Events of models and workers: the last ones stay here, all are logged and go to followers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from gateway.system.log_lines import about

logger = logging.getLogger(__name__)

Kind: TypeAlias = Literal[
    "state",
    "admit",
    "lend",
    "recall",
    "context",
    "evict",
    "overgrown",
    "relieve",
    "return",
    "stranded",
    "start",
    "adopt",
    "ready",
    "exit",
    "park",
    "resume",
    "refuse",
    "breaker",
    "hang",
    "escalation",
    "output_invalid",
    "cache_quarantined",
    "sweep",
    "caution",
    "spare",
    "reload",
    "mailbox",
    "pull",
    "checked",
    "removed",
    "disk",
    "upgrade",
    "upstream",
]

_STORED: Final = 1000
# Fields with seconds are rounded to the millisecond.
_DECIMALS: Final = 3
_IDS_PER_S: Final = 1_000_000
# The most events that wait for a slow follower. Beyond that it misses the oldest ones.
_BEHIND: Final = 1000
_WARNINGS: Final = (
    "overgrown",
    "stranded",
    "refuse",
    "breaker",
    "hang",
    "output_invalid",
    "escalation",
    "cache_quarantined",
    "sweep",
    "caution",
    "mailbox",
)


class Event(Struct, frozen=True):
    """`at` is a Unix time in seconds; `fields` depend on the kind."""

    id: int
    at: float
    kind: Kind
    model: str | None
    fields: dict[str, Any]

    def as_json(self) -> bytes:
        """The event as a JSON object, in which `fields` stand beside the other keys."""
        return msgspec.json.encode(
            {
                "id": self.id,
                "at": self.at,
                "event": self.kind,
                "model": self.model,
                **self.fields,
            }
        )


class EventLog:
    """Keeps the last events in memory. `counts` has the numbers of all events of this process, by
    kind and model. Call all methods on the event loop.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[Kind, str | None]] = Counter()
        self._events: deque[Event] = deque(maxlen=_STORED)
        # Ids begin above those of an earlier gateway: a follower that returns then misses no event.
        self._last_id = int(time.time()) * _IDS_PER_S
        self._followers: set[EventFollower] = set()

    def emit(self, kind: Kind, model: str | None, **fields: Any) -> None:
        self._last_id += 1
        self.counts[kind, model] += 1
        fields = {name: _rounded(value) for name, value in fields.items()}
        event = Event(self._last_id, time.time(), kind, model, fields)
        self._events.append(event)
        extra = about(event=kind, model=model, id=event.id, **fields)
        logger.log(_level(event), "%s", kind, extra=extra)
        for follower in self._followers:
            follower.put(event)

    def recent(self, count: int, model: str | None = None) -> list[Event]:
        """The last stored events, of this model if there is one."""
        events = [event for event in self._events if model in (None, event.model)]
        return events[-count:] if count > 0 else []

    @property
    def stored(self) -> tuple[Event, ...]:
        """The last events, for the gateway that replaces this one."""
        return tuple(self._events)

    def restore(self, events: Iterable[Event]) -> None:
        """Put the events of an earlier gateway before those of this one."""
        newer = list(self._events)
        self._events.clear()
        self._events.extend([*events, *newer])
        if self._events:
            self._last_id = max(self._last_id, *(event.id for event in self._events))

    def after(self, event_id: int) -> list[Event]:
        """The stored events with a higher id than `event_id`."""
        return [event for event in self._events if event.id > event_id]

    @contextmanager
    def follow(self) -> Iterator[EventFollower]:
        follower = EventFollower()
        self._followers.add(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)

    def close(self) -> None:
        """End all followers."""
        for follower in self._followers:
            follower.end()


class EventFollower:
    """The new events for one reader. `missed` counts events that were dropped for a slow reader."""

    def __init__(self) -> None:
        self.missed = 0
        self.ended = False
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        if len(self._events) >= _BEHIND:
            self._events.popleft()
            self.missed += 1
        self._events.append(event)
        self._arrived.set()

    def end(self) -> None:
        self.ended = True
        self._arrived.set()

    async def next_events(self) -> list[Event]:
        """Wait for events; return all since the last call, or none if the log is closed."""
        while not self._events and not self.ended:
            self._arrived.clear()
            await self._arrived.wait()
        events = list(self._events)
        self._events.clear()
        return events


def _rounded(value: Any) -> Any:
    """Round a float, since a difference of two times has more digits than were measured."""
    return round(value, _DECIMALS) if isinstance(value, float) else value


def _level(event: Event) -> int:
    if event.kind == "exit":
        return logging.INFO if event.fields.get("expected") else logging.ERROR
    return logging.WARNING if event.kind in _WARNINGS else logging.INFO
