"""Turns follow the seconds that requests cost, whatever was expected of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.requests.fair_shares import OTHERS, FairShares, opaque
from gateway.requests.queue import RequestQueue
from gateway.requests.request import Request, Terms
from protocol.message_base import BYTES_PER_TOKEN
from protocol.requests import Generate, Sampling, TokenPrompt

_names = itertools.count()


def request(
    sharer: str, tokens: int = 10, share: int = 1, priority: int | None = None, at: float = 0.0
) -> Request:
    task = Generate(
        request_id=str(next(_names)),
        prompt=TokenPrompt(bytes(BYTES_PER_TOKEN * tokens)),
        sampling=Sampling(seed=1),
    )
    terms = Terms(deadline_s=1e9, key=sharer, share=share, priority=priority)
    return Request(task, terms, at)


class Model:
    """A model that computes one prompt at a time, and what each sharer took of it."""

    def __init__(self, places: int, chance: random.Random) -> None:
        self.queue = RequestQueue(10_000, places, priority=0)
        self.chance = chance
        self.now = 0.0
        self.took: dict[str, float] = {}
        self.served: list[Request] = []
        self.running: list[Request] = []

    def fill(self) -> None:
        """Give all places away, and change places as long as that is fair."""
        while True:
            found = self.queue.next()
            if found is None:
                change = self.queue.make_way(self.now)
                if change is None:
                    break
                self.running.remove(change.leaving)
                found = change.coming
            found.progress.next_message("same")
            self.queue.run(found)
            self.running.append(found)
        waits = self.queue.waiting > 0
        assert not waits or len(self.running) == self.queue.max_running, "a place is idle"

    def serve(self) -> None:
        """Compute the whole first running request, for about as long as its tokens say."""
        self.fill()
        served = self.running.pop(0)
        seconds = served.progress.prompt_tokens * 0.001 * self.chance.uniform(0.3, 3.0)
        self.now += seconds
        name = served.terms.sharer
        self.took[name] = self.took.get(name, 0.0) + seconds
        self.queue.await_measurement(served)
        self.queue.shares.count(served.progress.prompt_tokens)
        self.queue.shares.charge_opaque({opaque(name): seconds})
        self.queue.remove(served)
        self.served.append(served)


@given(
    places=st.integers(1, 4),
    shares=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    lengths=st.lists(st.integers(10, 6000), min_size=2, max_size=4),
    seed=st.integers(0, 1 << 16),
)
def test_whoever_always_has_requests_gets_seconds_by_its_share(
    places: int, shares: list[int], lengths: list[int], seed: int
) -> None:
    model = Model(places, random.Random(seed))
    weights = {str(i): share for i, share in enumerate(shares)}

    def wait(name: str) -> None:
        length = lengths[int(name) % len(lengths)]
        model.queue.add(request(name, length, weights[name], at=model.now))

    for name in weights:
        for _ in range(places + 1):
            wait(name)
    longest_s = max(lengths) * 0.003
    until = 10 * longest_s * sum(shares)
    while model.now < until:
        model.serve()
        wait(model.served[-1].terms.sharer)
    for name, share in weights.items():
        fair_s = model.now * share / sum(shares)
        # What is in the worker was sent by what was expected of it.
        assert abs(model.took[name] - fair_s) <= (places + 1) * longest_s


def test_shares_of_1_and_3_get_seconds_1_to_3() -> None:
    model = Model(8, random.Random(1))
    for _ in range(10):
        model.queue.add(request("one", 100, 1))
        model.queue.add(request("three", 6000, 3))
    for _ in range(1500):
        model.serve()
        last = model.served[-1]
        model.queue.add(request(last.terms.sharer, last.progress.prompt_tokens, last.terms.share))
    assert model.took["three"] / model.took["one"] == pytest.approx(3.0, rel=0.1)


@given(
    places=st.integers(2, 6),
    waiting=st.integers(10, 60),
    served=st.integers(0, 8),
    seed=st.integers(0, 1 << 16),
)
def test_a_newcomer_has_a_place_at_once_and_is_the_next(
    places: int, waiting: int, served: int, seed: int
) -> None:
    model = Model(places, random.Random(seed))
    for _ in range(waiting):
        model.queue.add(request("flood", 6000))
    for _ in range(served):
        model.serve()
    model.fill()
    for _ in range(5):
        short = request("short", 20, at=model.now)
        model.queue.add(short)
        model.fill()
        assert short in model.running
        model.running.remove(short)
        model.queue.remove(short)


def test_with_one_place_a_newcomer_is_the_next() -> None:
    model = Model(1, random.Random(1))
    for _ in range(20):
        model.queue.add(request("flood", 6000))
    model.serve()
    model.fill()
    short = request("short", 20, at=model.now)
    model.queue.add(short)
    assert model.queue.make_way(model.now + 60.0) is None, "nobody has more than one"
    model.serve()
    model.serve()
    assert model.served[-1] is short


def test_turns_are_neither_saved_nor_owed_for_ever() -> None:
    shares = FairShares()
    shares.meet({"a": 1, "b": 1})
    shares.charge({"a": 5.0})
    # b pauses, while a has the model alone.
    shares.meet({"a": 1})
    shares.charge({"a": 100.0})
    shares.meet({"a": 1, "b": 1})
    assert shares.turn_s("b") == shares.turn_s("a")
    shares.charge({"b": 7.0})
    # Nobody has a request: whoever comes next begins like all others.
    shares.meet({})
    shares.meet({"a": 1, "b": 1, "c": 1})
    assert len({shares.turn_s(character) for character in "abc"}) == 1


def test_it_is_the_turn_of_whoever_has_had_the_least() -> None:
    shares = FairShares()
    shares.meet({"a": 1, "b": 2, "c": 1})
    shares.charge({"a": 3.0, "b": 4.0, "c": 1.0})
    assert shares.in_turn == ["c", "b", "a"]
    shares.expect("c", 5.0)
    assert shares.in_turn == ["b", "a", "c"]
    shares.await_measurement("c", 5.0)
    assert shares.in_turn == ["b", "a", "c"], "the measurement is still to come"
    shares.charge({"c": 0.5})
    assert shares.in_turn == ["c", "b", "a"]
    assert shares.costs == {"a": 3.0, "b": 4.0, "c": 1.5}


@given(st.lists(st.dictionaries(st.integers(0, 400).map(str), st.integers(1, 9), max_size=80)))
def test_remembered_sharers_are_bounded_and_their_seconds_are_summed(
    present: list[Mapping[str, int]],
) -> None:
    shares, all_s = FairShares(), 0.0
    for entry in present:
        shares.meet(entry)
        shares.charge(dict.fromkeys(entry, 0.25))
        all_s += 0.25 * len(entry)
        assert len(shares.in_turn) <= max(64, len(entry))
        assert len(shares.costs) <= 65
    assert sum(shares.costs.values()) == pytest.approx(all_s)
    assert all(name == OTHERS or name.isdecimal() for name in shares.costs)


def test_another_gateway_goes_on_with_what_each_has_had() -> None:
    shares, again = FairShares(), FairShares()
    shares.meet({"a": 1, "b": 1})
    shares.charge({"a": 3.0})
    again.restore(shares.state)
    again.meet({"a": 1, "b": 1})
    assert again.in_turn == ["b", "a"]
    assert again.turn_s("a") - again.turn_s("b") == 3.0
    assert again.costs == {"a": 3.0, "b": 0.0}


def test_workers_get_opaque_names() -> None:
    assert opaque("") == ""
    assert "alice" not in opaque("alice")
    assert opaque("alice") == opaque("alice") != opaque("bob")
