"""When readers hear of what has arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from gateway.dispatch.beat import Beat
from gateway.dispatch.request import Piece, Request
from protocol.answers import Delta
from protocol.parts import Text
from protocol.prompts import TextPrompt
from protocol.requests import Generate, Sampling


class Clock:
    """As much of an event loop as a beat asks for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> object:
        self.timers.append((self.now + delay_s, callback))
        return object()

    def go_on(self, seconds: float) -> None:
        self.now += seconds
        due = [callback for at, callback in self.timers if at <= self.now]
        self.timers = [each for each in self.timers if each[0] > self.now]
        for callback in due:
            callback()


class Reader:
    """It waits, and has what its shortcut wrote."""

    def __init__(self) -> None:
        generate = Generate(request_id="r", prompt=TextPrompt("x"), sampling=Sampling(seed=1))
        self.request = Request(generate, now=100.0, deadline_s=5.0)
        self.texts: list[str] = []
        self._task = asyncio.create_task(self.request.take(self._write))

    def _write(self, piece: Piece) -> bool:
        self.texts += [each.text for each in piece.parts if isinstance(each, Text)]
        return True


def _message(beat: Beat, readers: list[Reader], text: str) -> None:
    for each in readers:
        if each.request.deliver(Delta("r", (1,), (Text(text),)), 100.0):
            beat.note(each.request)
    beat.end_message()


async def test_all_hear_of_a_step_at_once_and_of_those_that_follow_soon_by_the_next_beat() -> None:
    clock = Clock()
    beat = Beat(cast(Any, clock))
    readers = [Reader(), Reader()]
    await asyncio.sleep(0)
    _message(beat, readers, "a")
    assert [each.texts for each in readers] == [["a"], ["a"]]
    _message(beat, readers, "b")
    clock.go_on(0.004)
    _message(beat, readers[:1], "c")
    assert [each.texts for each in readers] == [["a"], ["a"]]
    clock.go_on(0.02)
    assert [each.texts for each in readers] == [["a", "bc"], ["a", "b"]]
    _message(beat, readers, "d")
    clock.go_on(0.02)
    assert [each.texts[-1] for each in readers] == ["d", "d"]


async def test_a_slow_engine_waits_for_no_beat_and_an_idle_one_has_no_timer() -> None:
    clock = Clock()
    beat = Beat(cast(Any, clock))
    reader = Reader()
    await asyncio.sleep(0)
    for text in "abc":
        _message(beat, [reader], text)
        assert reader.texts[-1] == text
        clock.go_on(0.1)
    assert clock.timers == []
