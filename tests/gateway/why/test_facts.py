from __future__ import annotations

from gateway.system.events import EventLog
from gateway.why.facts import facts_of
from gateway.why.record import CacheEvent


def test_events_of_the_cache_are_in_order_with_their_reasons() -> None:
    log = EventLog()
    log.emit("exit", "m", pid=1, reason="stopped as asked")
    log.emit("state", "m", before="ready", after="unloaded", cause="exit", reason=None)
    log.emit("cache_quarantined", "m", blocks=3, why="a checksum is wrong")
    events = log.recent(10, "m")
    facts = facts_of(events, [CacheEvent(events[0].at - 1.0, "cleared", "")], "it was wrong")
    assert [(event.kind, event.reason) for event in facts.cache_events] == [
        ("cleared", ""),
        ("ended", "stopped as asked"),
        ("quarantined", "a checksum is wrong"),
    ]
    assert [change.state for change in facts.states] == ["unloaded"]
    assert facts.off == "it was wrong"
