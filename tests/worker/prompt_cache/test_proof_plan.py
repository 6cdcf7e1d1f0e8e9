"""Which proof comes next, and what counts as equal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.prompt_cache.proof_plan import QUIET_S, SHARE, NoiseBounds, ProofPlan

DAY_S = 86400.0


@given(
    st.lists(
        st.tuples(st.floats(0.01, 500), st.booleans(), st.floats(0, 5000)), min_size=1, max_size=60
    )
)
def test_proofs_keep_to_their_share_of_the_time(parts: list[tuple[float, bool, float]]) -> None:
    now = worked_s = 0.0
    plan = ProofPlan(now)
    for seconds, more, later_s in parts:
        wait_s = plan.wait_s(now)
        assert wait_s >= QUIET_S
        now += wait_s + later_s
        task = plan.next(now)
        assert task is not None, "whoever waited for so long may begin"
        assert worked_s <= SHARE * now + 1e-6
        plan.done(task, now, now + seconds, more=more)
        now += seconds
        worked_s += seconds
        assert plan.next(now) is None


def test_each_task_has_its_turn_while_there_is_more() -> None:
    now, plan = 0.0, ProofPlan(0.0)
    tasks = []
    for _ in range(6):
        now += plan.wait_s(now)
        task = plan.next(now)
        assert task is not None
        tasks.append(task)
        plan.done(task, now, now + 0.1, more=True)
    assert sorted(tasks[:3]) == sorted(tasks[3:]) == ["content", "disk", "memory"]


def test_all_bytes_in_memory_are_compared_every_ten_minutes() -> None:
    now, plan, rounds = 0.0, ProofPlan(0.0), 0
    while now < DAY_S:
        now += plan.wait_s(now)
        task = plan.next(now)
        assert task is not None
        rounds += task == "memory"
        plan.done(task, now, now + 0.1, more=False)
    assert 140 <= rounds <= 145


class TestBounds:
    def test_noise_is_no_fault(self) -> None:
        bounds = NoiseBounds(0.001)
        bounds.observe([0.01, 0.0001], 0.002)
        bounds.observe([0.005, 0.0], 0.0)
        assert bounds.fault([0.07, 0.0009], 0.015) is None

    @pytest.mark.parametrize(
        ("distances", "divergence", "what"),
        [
            ([0.09, 0.0], 0.0, "array 0 differs by 0.09"),
            ([0.0, 0.002], 0.0, "array 1 differs by 0.002"),
            ([0.0, math.nan], 0.0, "array 1 differs by nan"),
            ([0.0, 0.0], 0.02, "diverges by 0.02 nats"),
            ([0.0, 0.0], math.nan, "diverges by nan"),
        ],
    )
    def test_more_than_noise_is_a_fault(
        self, distances: list[float], divergence: float, what: str
    ) -> None:
        bounds = NoiseBounds(0.001)
        bounds.observe([0.01, 0.0001], 0.002)
        fault = bounds.fault(distances, divergence)
        assert fault is not None
        assert what in fault

    def test_no_noise_hides_what_has_nothing_in_common(self) -> None:
        bounds = NoiseBounds(0.001)
        bounds.observe([3.0], 0.6)
        assert bounds.fault([1.0], 0.0) is not None
        assert bounds.fault([0.0], 0.5) is not None
