from __future__ import annotations

import asyncio
import json
import logging

import msgspec
import pytest

from gateway.system.events import EventLog
from gateway.system.log_lines import structured


async def test_a_follower_gets_what_comes() -> None:
    log = EventLog()
    log.emit("start", "demo", pid=1)
    with log.follow() as follower:
        log.emit("exit", "demo", pid=1)
        log.emit("state", "demo", before="ready", after="unloaded")
        async with asyncio.timeout(1):
            assert [next_event.kind for next_event in await follower.next_events()] == [
                "exit",
                "state",
            ]
        waiting = asyncio.create_task(follower.next_events())
        await asyncio.sleep(0)
        log.emit("start", "demo", pid=2)
        async with asyncio.timeout(1):
            assert [event.fields for event in await waiting] == [{"pid": 2}]
        log.close()
        async with asyncio.timeout(1):
            assert await follower.next_events() == []
        assert follower.ended


def test_the_last_events_of_a_model() -> None:
    log = EventLog()
    for model in ("a", "b", None, "a", "b", "a"):
        log.emit("start", model)
    ids = [event.id for event in log.recent(6)]
    assert [event.id for event in log.recent(2, "b")] == [ids[1], ids[4]]
    assert [event.id for event in log.recent(2)] == ids[4:]
    assert log.recent(0, "a") == []


async def test_a_slow_follower_misses_the_oldest() -> None:
    log = EventLog()
    with log.follow() as follower:
        for _ in range(1500):
            log.emit("start", "demo")
        taken = await follower.next_events()
    assert (len(taken), follower.missed) == (1000, 500)
    assert taken[-1].id - taken[0].id == 999


def test_stored_events_are_bounded() -> None:
    log = EventLog()
    for _ in range(1500):
        log.emit("start", "demo")
    assert len(log.recent(5000)) == 1000
    last = log.recent(1)[0].id
    assert [event.id for event in log.recent(2)] == [last - 1, last]
    assert log.recent(0) == []
    assert [event.id for event in log.after(last - 2)] == [last - 1, last]
    assert log.after(last) == []
    assert len(log.after(17)) == 1000, "of an earlier gateway"


def test_event_is_log_line_with_fields(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    with caplog.at_level(logging.INFO):
        log.emit("exit", "demo", pid=7, name="spare", reason="it crashed", code=None)
    (record,) = caplog.records
    (event,) = log.recent(1)
    line = structured(record)
    assert line.pop("time")
    assert line == {
        "level": "error",
        "logger": "gateway.system.events",
        "event": "exit",
        "model": "demo",
        "id": event.id,
        "pid": 7,
        "name": "spare",
        "reason": "it crashed",
    }


def test_event_is_flat_object() -> None:
    log = EventLog()
    log.emit("ready", "demo", pid=7, load_s=0.5)
    (event,) = log.recent(1)
    fields = msgspec.json.decode(event.as_json())
    assert fields == {"id": event.id, "at": event.at, "event": "ready", "model": "demo"} | {
        "pid": 7,
        "load_s": 0.5,
    }
    assert "\n" not in json.dumps(fields)


async def test_seconds_have_no_digits_that_nobody_measured() -> None:
    log = EventLog()
    log.emit("breaker", "demo", next_attempt_s=299.9999999999999, deaths=1, verdict="give up")
    (event,) = log.recent(1)
    assert event.fields == {"next_attempt_s": 300.0, "deaths": 1, "verdict": "give up"}
