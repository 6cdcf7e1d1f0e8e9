"""The facts about a model, from its events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gateway.system.events import Event, Kind
from gateway.why.record import CacheEvent, CacheEventKind, Facts, StateChange

# By the kinds of events: what happened to cached prompts, and the field with the reason.
_KINDS: Final[dict[Kind, tuple[CacheEventKind, str]]] = {
    "exit": ("ended", "reason"),
    "cache_quarantined": ("quarantined", "why"),
}


def facts_of(events: Iterable[Event], clears: Iterable[CacheEvent], off: str = "") -> Facts:
    """The facts about a model, from its last events, and the clears of its cached prompts."""
    events = list(events)
    states = tuple(
        StateChange(event.at, event.fields["after"]) for event in events if event.kind == "state"
    )
    cache_events = sorted([*_of_cache(events), *clears], key=lambda event: event.at)
    return Facts(tuple(cache_events), states, off)


def _of_cache(events: Iterable[Event]) -> Iterator[CacheEvent]:
    for event in events:
        if (known := _KINDS.get(event.kind)) is not None:
            kind, field = known
            yield CacheEvent(event.at, kind, event.fields[field])
