"""The steps that end a worker, and the time that each gets."""

from __future__ import annotations

import pytest

from gateway.workers import shutdown_steps
from gateway.workers.shutdown_steps import ShutdownStep

GB = 1_000_000_000


def _steps(sequence: tuple[shutdown_steps.TimedStep, ...]) -> list[ShutdownStep]:
    return [timed.step for timed in sequence]


@pytest.mark.parametrize("held_bytes", [None, 0, GB, 63 * GB])
def test_a_hung_worker_is_killed_after_its_stacks(held_bytes: int | None) -> None:
    assert _steps(shutdown_steps.hung(held_bytes)) == [ShutdownStep.DUMP, ShutdownStep.KILL]


def test_a_large_one_gets_sigterm_first_and_more_time_the_larger_it_is() -> None:
    deadlines_s = []
    for held_bytes in (64 * GB, 100 * GB, 424 * GB):
        sequence = shutdown_steps.hung(held_bytes)
        assert _steps(sequence) == [ShutdownStep.DUMP, ShutdownStep.TERMINATE, ShutdownStep.KILL]
        deadlines_s.append(sequence[1].deadline_s)
    assert deadlines_s == sorted(set(deadlines_s))
    assert deadlines_s[0] > 10.0


def test_no_sequence_takes_longer_than_the_longest() -> None:
    for make in (
        shutdown_steps.polite,
        shutdown_steps.shortened,
        shutdown_steps.hung,
        shutdown_steps.orphaned,
    ):
        for held_bytes in (0, 64 * GB, 600 * GB):
            assert sum(step.deadline_s for step in make(held_bytes)) <= shutdown_steps.longest_s()
