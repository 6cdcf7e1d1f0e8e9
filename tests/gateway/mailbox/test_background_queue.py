"""Who waits in the background is nobody's and is lost never; the first of the most urgent goes."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.mailbox.jobs import BackgroundQueue, QueuePlace

CONCURRENCY = 2
MODELS = ("a", "b")


def _turn(name: str, model: str = "a", priority: int = 0, deadline_at: float = 1e9) -> QueuePlace:
    return QueuePlace(("", name), model, priority, deadline_at)


class _Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = BackgroundQueue()
        self.names = itertools.count()
        # In the order in which they came, or came back.
        self.waiting: list[QueuePlace] = []
        self.running: list[QueuePlace] = []
        self.now = 0.0

    def _new(self, data: st.DataObject) -> QueuePlace:
        return _turn(
            str(next(self.names)),
            data.draw(st.sampled_from(MODELS)),
            data.draw(st.integers(-2, 2)),
            self.now + data.draw(st.integers(1, 20)),
        )

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        turn = self._new(data)
        self.queue.add(turn)
        self.waiting.append(turn)

    @rule(full=st.sets(st.sampled_from(MODELS)))
    def start(self, full: set[str]) -> None:
        def free(model: str) -> bool:
            busy = sum(place.model == model for place in self.running)
            return model not in full and busy < CONCURRENCY

        may = [queue_place for queue_place in self.waiting if free(queue_place.model)]
        turn = self.queue.next(CONCURRENCY, full)
        if turn is None:
            assert not may
            return
        assert turn == max(may, key=lambda queue_place: queue_place.priority), (
            "max has the first of them"
        )
        self.waiting.remove(turn)
        self.running.append(turn)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.running:
            turn = data.draw(st.sampled_from(self.running))
            self.queue.remove(turn.name)
            self.running.remove(turn)

    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        if self.running:
            turn = data.draw(st.sampled_from(self.running))
            assert self.queue.put_back(turn.name)
            self.running.remove(turn)
            self.waiting.insert(0, turn)

    @rule(data=st.data())
    def take_or_forget_one_that_waits(self, data: st.DataObject) -> None:
        if self.waiting:
            turn = data.draw(st.sampled_from(self.waiting))
            self.waiting.remove(turn)
            if data.draw(st.booleans()):
                assert self.queue.start_early(turn.name)
                self.running.append(turn)
            else:
                self.queue.remove(turn.name)

    @rule(seconds=st.integers(0, 10))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        late = [place for place in self.waiting if place.deadline_at <= self.now]
        assert set(self.queue.start_overdue(self.now)) == set(late)
        self.waiting = [queue_place for queue_place in self.waiting if queue_place not in late]
        self.running += late

    @invariant()
    def everybody_is_somewhere(self) -> None:
        assert self.queue.owners.total() == len(self.waiting)
        assert all(self.queue.waits(place.name) for place in self.waiting)
        assert all(self.queue.runs(queue_place.name) for queue_place in self.running)


def test_queue_loses_no_answer() -> None:
    run_state_machine_as_test(_Life, settings=settings(max_examples=20))


def test_model_does_not_hold_up_another() -> None:
    queue = BackgroundQueue()
    for name in ("1", "2", "3"):
        queue.add(_turn(name))
    queue.add(_turn("other", "b", -5))
    taken = [queue.next(CONCURRENCY) for _ in range(4)]
    assert [place and place.name[1] for place in taken] == ["1", "2", "other", None]


def test_unknown_answer_changes_nothing() -> None:
    queue = BackgroundQueue()
    queue.remove(("", "x"))
    assert not queue.start_early(("", "x"))
    assert not queue.put_back(("", "x"))


def test_exhausted_owner_waits_and_stays_in_turn() -> None:
    queue = BackgroundQueue()
    mine, other = QueuePlace(("me", "r"), "a", 0, 1e9), QueuePlace(("you", "r"), "a", 0, 1e9)
    for place in (mine, other):
        queue.add(place)
    assert queue.owners == {"me": 1, "you": 1}
    assert queue.next(CONCURRENCY, (), ["me"]) == other
    assert queue.next(CONCURRENCY, (), ["me"]) is None
    assert queue.next(CONCURRENCY) == mine
