"""Places in the queue and in the worker, when several keys want them."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.requests.progress import SUSPECT_TOKENS, Passage
from gateway.requests.queue import QueueFullError, RequestQueue
from gateway.requests.request import Request, Terms
from gateway.requests.traffic import QueueBounds, Traffic, WorkerConnection
from gateway.system.events import EventLog
from gateway.system.refusal import Refusal
from protocol.answers import Costs
from protocol.message_base import Message, unpack
from protocol.requests import Cancel, Embed, Generate, Sampling, TextPrompt
from tests.gateway.requests.test_fair_shares import request
from tests.gateway.requests.test_traffic import Waiting, taken

LATER = 1e6


def _named(queue: RequestQueue) -> list[str]:
    return [item.terms.sharer for item in queue.in_order[1]]


def _start(queue: RequestQueue) -> list[Request]:
    started = []
    while (found := queue.next()) is not None:
        found.progress.next_message("same")
        queue.run(found)
        started.append(found)
    return started


class TestQueue:
    def test_a_sharer_with_fewer_takes_the_place_of_the_newest_of_the_one_with_most(self) -> None:
        queue = RequestQueue(4, 1, priority=0)
        waiting = [request("a", at=float(i)) for i in range(4)]
        assert [queue.add(item) for item in waiting] == [None] * 4
        with pytest.raises(QueueFullError):
            queue.add(request("a"))
        assert queue.add(request("b")) is waiting[3]
        with pytest.raises(QueueFullError):
            queue.add(request("a"))
        assert queue.add(request("b")) is waiting[2]
        with pytest.raises(QueueFullError):
            queue.add(request("b"))
        assert sorted(_named(queue)) == ["a", "a", "b", "b"]

    def test_by_their_shares(self) -> None:
        queue = RequestQueue(4, 1, priority=0)
        for _ in range(4):
            queue.add(request("a"))
        for _ in range(3):
            assert queue.add(request("b", share=3)) is not None
        with pytest.raises(QueueFullError):
            queue.add(request("b", share=3))

    def test_request_of_lower_priority_takes_no_place(self) -> None:
        queue = RequestQueue(2, 1, priority=0)
        low, high = request("a", priority=0), request("a", priority=5)
        queue.add(low)
        queue.add(high)
        with pytest.raises(QueueFullError):
            queue.add(request("b", priority=-1))
        assert queue.add(request("b", priority=0)) is low

    def test_request_that_ran_before_stays_in_the_queue(self) -> None:
        queue = RequestQueue(1, 2, priority=0)
        queue.add(request("a"))
        _start(queue)
        queue.add(request("a"))
        _start(queue)
        queue.add(request("b"))
        change = queue.make_way(LATER)
        assert change is not None
        queue.run(change.coming)
        with pytest.raises(QueueFullError):
            queue.add(request("c"))

    def test_they_are_listed_in_the_order_in_which_they_start(self) -> None:
        queue = RequestQueue(9, 1, priority=0)
        for sharer, priority in (("a", 0), ("a", 0), ("a", 0), ("b", 0), ("c", -1), ("c", 3)):
            queue.add(request(sharer, priority=priority))
        assert _named(queue) == ["c", "a", "b", "a", "a", "c"]
        started = []
        while found := _start(queue):
            started += [item.terms.sharer for item in found]
            for item in found:
                queue.remove(item)
        assert started == ["c", "a", "b", "a", "a", "c"]


class TestPlaces:
    def test_the_newest_without_a_token_waits_again_before_its_sharers_others(self) -> None:
        queue = RequestQueue(9, 3, priority=0)
        flood = [request("a", at=float(i)) for i in range(5)]
        for item in flood:
            queue.add(item)
        assert _start(queue) == flood[:3]
        flood[2].progress.delivered.append(7)
        queue.add(coming := request("b", at=9.0))
        change = queue.make_way(9.0)
        assert change is not None
        assert (change.leaving, change.coming) == (flood[1], coming)
        queue.run(coming)
        assert queue.in_order == ([flood[0], flood[2], coming], [flood[1], *flood[3:]])
        assert queue.remove(coming)
        assert _start(queue) == [flood[1]]

    def test_a_running_answer_gives_its_place_only_to_a_sharer_without_any_that_has_waited(
        self,
    ) -> None:
        queue = RequestQueue(9, 4, priority=0)
        for i in range(4):
            queue.add(request("a", at=float(i)))
        running = _start(queue)
        for item in running:
            item.progress.delivered.append(7)
        queue.add(request("b", at=9.0))
        queue.add(request("b", at=9.0))
        assert queue.make_way(9.4) is None
        change = queue.make_way(9.5)
        assert change is not None
        assert change.leaving is running[3]
        queue.run(change.coming)
        assert queue.parked == 1, "its client has a part of the answer"
        assert queue.make_way(LATER) is None, "b has a place"
        queue.remove(running[0])
        assert _start(queue) == [running[3]], "it goes on before anybody begins"

    def test_sharer_gets_no_more_than_its_part(self) -> None:
        queue = RequestQueue(99, 8, priority=0)
        for _ in range(20):
            queue.add(request("a"))
        _start(queue)
        for _ in range(20):
            queue.add(request("b", share=3))
        while (change := queue.make_way(LATER)) is not None:
            change.coming.progress.next_message("same")
            queue.run(change.coming)
        running, _ = queue.in_order
        assert [item.terms.sharer for item in running].count("b") == 6

    def test_no_place_of_a_higher_priority_and_none_of_a_passage(self) -> None:
        queue = RequestQueue(9, 2, priority=0)
        passages = [Request(Passage(str(i)), Terms(deadline_s=1e9, key="a"), 0.0) for i in range(2)]
        for passage in passages:
            queue.add(passage)
        assert _start(queue) == passages
        queue.add(request("b"))
        assert queue.make_way(LATER) is None
        queue = RequestQueue(9, 2, priority=0)
        for _ in range(2):
            queue.add(request("a", priority=1))
        _start(queue)
        queue.add(request("b", priority=0))
        assert queue.make_way(LATER) is None


class _World(RuleBasedStateMachine):
    """Keys that come and go, and a worker that computes, dies and is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = RequestQueue(6, 3, priority=0)
        self.now = 0.0
        self.here: set[Request] = set()
        self.running: list[Request] = []

    @rule(sharer=st.sampled_from("abc"), priority=st.sampled_from((None, None, 1)))
    def arrive(self, sharer: str, priority: int | None) -> None:
        new = request(sharer, 100, {"a": 1, "b": 1, "c": 3}[sharer], priority, self.now)
        counts = [item.terms.sharer for item in self.queue]
        try:
            leaving = self.queue.add(new)
        except QueueFullError:
            assert self.queue.waiting >= 6
            return
        self.here.add(new)
        if leaving is not None:
            assert counts.count(leaving.terms.sharer) > 1
            self.here.remove(leaving)

    @rule(seconds=st.sampled_from((0.1, 1.0)))
    def dispatch(self, seconds: float) -> None:
        self.now += seconds
        while True:
            found = self.queue.next()
            if found is None:
                change = self.queue.make_way(self.now)
                if change is None:
                    break
                assert change.leaving in self.running
                assert change.leaving.terms.sharer != change.coming.terms.sharer
                self.running.remove(change.leaving)
                found = change.coming
            found.progress.next_message("same")
            self.queue.run(found)
            self.running.append(found)
        if not any(item.progress.suspect for item in self.queue):
            assert len(self.running) == min(3, len(self.here))

    @rule(data=st.data(), seconds=st.floats(0.0, 5.0))
    def compute(self, data: st.DataObject, seconds: float) -> None:
        if not self.running:
            return
        found = data.draw(st.sampled_from(self.running))
        found.progress.delivered.extend(range(SUSPECT_TOKENS))
        self.queue.await_measurement(found)
        self.queue.shares.charge({found.terms.sharer: seconds})
        if self.queue.release_suspect(found):
            self.running.remove(found)

    @rule(blame=st.booleans())
    def the_worker_dies(self, blame: bool) -> None:
        taken_ = self.queue.take_running()
        assert set(taken_) == set(self.running)
        for item in taken_:
            if blame and item.progress.record_death():
                self.here.remove(item)
        self.queue.park([item for item in taken_ if item in self.here])
        self.running = []

    @rule(data=st.data())
    def remove_one(self, data: st.DataObject) -> None:
        if self.here:
            found = data.draw(st.sampled_from(sorted(self.here, key=lambda item: item.id)))
            assert self.queue.remove(found) == (found in self.running)
            self.here.remove(found)
            self.running = [item for item in self.running if item is not found]

    @invariant()
    def nobody_is_lost(self) -> None:
        assert set(self.queue) == self.here
        running, waiting = self.queue.in_order
        assert set(running) == set(self.running)
        assert len(running) + len(waiting) == len(self.here)
        assert sum(sharer.running for sharer in self.queue.sharers()) == len(running)
        assert sum(count.waiting for count in self.queue.sharers()) == len(waiting)


def test_random_worlds() -> None:
    run_state_machine_as_test(_World, settings=settings(stateful_step_count=40, deadline=None))


def _asked(name: str, sharer: str, at: float) -> Request:
    generate = Generate(request_id=name, prompt=TextPrompt("x"), sampling=Sampling(seed=1))
    return Request(generate, Terms(deadline_s=1e9, key=sharer, share=2), at)


class _Served:
    """A model's traffic with a worker that gets messages."""

    def __init__(self, running: int, depth: int = 9) -> None:
        self.sent: list[Message] = []
        self.traffic = Traffic("m", QueueBounds(depth, running, 0), Waiting(), EventLog())
        self.traffic.connect(WorkerConnection(self.sent.append, "print", 4096))

    def ask(self, name: str, sharer: str) -> Request:
        found = _asked(name, sharer, asyncio.get_running_loop().time())
        self.traffic.submit(found)
        self.traffic.dispatch()
        return found


async def test_a_request_that_gave_its_place_goes_on_with_what_it_had() -> None:
    world = _Served(running=2)
    for name in ("a1", "a2"):
        world.ask(name, "a")
    short = world.ask("b1", "b")
    cancel, began = world.sent[2:]
    assert cancel == Cancel(request_id="a2.1")
    assert isinstance(began, Generate)
    assert (began.request_id, began.share) == ("b1.1", 2)
    assert began.sharer not in ("", "b")
    world.traffic.cancel(short)
    again = world.sent[-1]
    assert isinstance(again, Generate)
    assert (again.request_id, unpack(again.delivered)) == ("a2.2", [])
    assert (world.traffic.meter.parked, world.traffic.meter.resumed) == (1, 1)


async def test_request_that_leaves_a_full_queue_is_refused() -> None:
    world = _Served(running=1, depth=2)
    for name in ("a1", "a2"):
        world.ask(name, "a")
    last = world.ask("a3", "a")
    world.ask("b1", "b")
    with pytest.raises(Refusal) as full:
        await taken(last)
    assert full.value.code == "queue_full"


async def test_measured_seconds_decide_the_next_turn() -> None:
    world = _Served(running=2)
    world.ask("a1", "a")
    world.ask("b1", "b")
    sent = {message.sharer for message in world.sent if isinstance(message, Generate | Embed)}
    first = next(message for message in world.sent if isinstance(message, Generate))
    assert len(sent) == 2
    world.traffic.costs(Costs(seconds={first.sharer: 3.0, "unknown": 9.0}))
    assert world.traffic.queue.shares.costs == {"a": 3.0, "b": 0.0}
    for name, sharer in (("a2", "a"), ("b2", "b")):
        world.ask(name, sharer)
    assert [item.id for item in world.traffic.queue.in_order[1]] == ["b2", "a2"]
