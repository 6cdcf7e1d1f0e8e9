"""Sequences of several sharers wait in turns, and each step is charged to those who took part."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.model_folders import DEMO_FOLDER
from worker.engines.batched_engine import BatchedEngine
from worker.engines.room import CacheRoom, measure
from worker.engines.sequence import Sequence
from worker.engines.sequential import SequentialEngine
from worker.engines.turns import SharerSeconds, Turns
from worker.load.loading import load


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 500)), min_size=300, max_size=400))
def test_waiting_sharers_get_work_by_their_shares(pieces: list[tuple[str, int]]) -> None:
    turns, shares = Turns(), {"a": 1, "b": 2, "c": 5}
    waiting = sorted(
        (turns.reserve(sharer, shares[sharer], cost), place, sharer, cost)
        for place, (sharer, cost) in enumerate(pieces)
    )
    done = dict.fromkeys(shares, 0.0)
    left = {share: sum(s == share for s, _ in pieces) for share in shares}
    for number, _, sharer, cost in waiting:
        turns.start(number)
        done[sharer] += cost / shares[sharer]
        left[sharer] -= 1
        if not all(left.values()):
            break
        assert max(done.values()) - min(done.values()) <= 1000


def test_a_newcomer_is_next_and_what_comes_back_is_not_ahead_of_others() -> None:
    turns = Turns()
    flood = [turns.reserve("a", 1, 6000) for _ in range(30)]
    turns.start(flood[3])
    assert flood[3] <= turns.reserve("b", 1, 20) < flood[4]
    turns.start(flood[20])
    assert turns.reserve("b", 1, 20) >= flood[20]


def test_the_number_of_remembered_sharers_is_bounded() -> None:
    turns = Turns()
    for index in range(1000):
        turns.reserve(str(index), 1, index)
    assert len(turns._ends) <= 256


def test_a_step_costs_each_request_the_same() -> None:
    seconds = SharerSeconds()
    seconds.add(["a", "b", "a", "a"], 4.0)
    seconds.add([], 1.0)
    assert seconds.collect() == {"a": 3.0, "b": 1.0}
    assert seconds.collect() == {}


def _sequence(name: str, sharer: str, tokens: int, answer: int = 2) -> Sequence:
    ids = [10 + i % 400 for i in range(tokens)]
    return Sequence(name, ids, answer, None, ignore_eos=True, sharer=sharer)


@pytest.fixture(scope="module")
def model() -> Any:
    return load(str(DEMO_FOLDER), lambda _done, _total: None, lambda: False).model


@pytest.mark.parametrize("kind", [BatchedEngine, SequentialEngine])
def test_a_short_prompt_of_another_begins_before_those_that_wait(kind: Any, model: Any) -> None:
    room = CacheRoom(measure(model))
    engine = BatchedEngine(model, [], 1, room) if kind is BatchedEngine else kind(model, [], room)
    for index in range(4):
        engine.add(_sequence(f"flood {index}", "a", 300))
    engine.step()
    engine.add(_sequence("short", "b", 20))
    ended: list[str] = []
    while engine.active + engine.waiting:
        ended += [item.request_id for item in engine.step() if item.finish_reason]
    assert ended == ["flood 0", "short", "flood 1", "flood 2", "flood 3"]
    costs = engine.collect_costs()
    assert costs["a"] > costs["b"] > 0.0
    engine.close()
