"""Threads are shared: nobody waits for all that another sharer has."""

from __future__ import annotations

import threading
from functools import partial

from tests.support.gateway import eventually
from worker.process.preparation import FairLane


class _Lane:
    """A lane whose pieces wait until they are told to end."""

    def __init__(self, threads: int, most: int) -> None:
        self.lane = FairLane(threads, most, "test")
        self.begun: list[str] = []
        self.ends: dict[str, threading.Event] = {}

    def submit(self, name: str, sharer: str, priority: int = 0, cost: float = 10.0) -> None:
        self.ends[name] = threading.Event()
        self.lane.submit(partial(self._run, name), sharer, 1, priority, cost)

    def end(self, name: str) -> None:
        self.ends[name].set()

    def end_all(self) -> None:
        for end in self.ends.values():
            end.set()
        eventually(lambda: len(self.begun) == len(self.ends))

    def _run(self, name: str) -> None:
        self.begun.append(name)
        assert self.ends[name].wait(60)


def test_a_thread_is_left_for_another() -> None:
    lane = _Lane(3, 2)
    for index in range(9):
        lane.submit(f"a{index}", "a")
    eventually(lambda: len(lane.begun) == 2)
    lane.submit("b0", "b")
    eventually(lambda: "b0" in lane.begun)
    assert sorted(lane.begun) == ["a0", "a1", "b0"]
    lane.end("b0")
    lane.end("a0")
    eventually(lambda: "a2" in lane.begun)
    lane.end_all()


def test_those_that_wait_have_turns() -> None:
    lane = _Lane(1, 1)
    lane.submit("first", "a")
    eventually(lambda: lane.begun)
    for index in range(3):
        lane.submit(f"a{index}", "a")
    for index in range(2):
        lane.submit(f"b{index}", "b")
    lane.submit("high", "a", priority=1)
    lane.end_all()
    assert lane.begun == ["first", "high", "b0", "a0", "b1", "a1", "a2"]


def test_a_piece_that_fails_gives_its_thread_back() -> None:
    lane = _Lane(2, 1)
    lane.lane.submit(partial(int, "none"), "a", 1, 0, 1.0)
    lane.submit("next", "a")
    eventually(lambda: lane.begun)
    lane.end_all()
