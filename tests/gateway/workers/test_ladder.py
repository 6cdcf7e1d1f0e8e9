"""The steps that end a worker, and the time that each gets."""

from __future__ import annotations

import pytest

from gateway.workers import ladder
from gateway.workers.ladder import LadderStep

GB = 1_000_000_000


def _steps(rungs: tuple[ladder.Rung, ...]) -> list[LadderStep]:
    return [each.step for each in rungs]


@pytest.mark.parametrize("held_bytes", [None, 0, GB, 63 * GB])
def test_a_hung_worker_is_killed_after_its_stacks(held_bytes: int | None) -> None:
    assert _steps(ladder.hung(held_bytes)) == [LadderStep.DUMP, LadderStep.KILL]


def test_a_large_one_gets_sigterm_first_and_more_time_the_larger_it_is() -> None:
    deadlines_s = []
    for held_bytes in (64 * GB, 100 * GB, 424 * GB):
        rungs = ladder.hung(held_bytes)
        assert _steps(rungs) == [LadderStep.DUMP, LadderStep.TERMINATE, LadderStep.KILL]
        deadlines_s.append(rungs[1].deadline_s)
    assert deadlines_s == sorted(set(deadlines_s))
    assert deadlines_s[0] > 10.0


def test_no_ladder_takes_longer_than_the_longest() -> None:
    for make in (ladder.polite, ladder.shortened, ladder.hung, ladder.orphaned):
        for held_bytes in (0, 64 * GB, 600 * GB):
            assert sum(each.deadline_s for each in make(held_bytes)) <= ladder.longest_s()
