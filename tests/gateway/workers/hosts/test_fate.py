"""What becomes of the ranks of one incarnation, rule by rule. All of it at once:
test_rank_worlds.py.
"""

from __future__ import annotations

import pytest

from gateway.system.child import ExitStatus
from gateway.workers.host import RankEnd
from gateway.workers.rank_group import LEADER_FOLLOWS_S, Loss, RankGroup
from gateway.workers.shutdown_steps import ShutdownStep

KILLED = RankEnd(ExitStatus(None, "SIGKILL"), "signal SIGKILL")
LEFT = RankEnd(ExitStatus(0, None), "exit code 0")
UNSEEN = RankEnd(None, "out of reach")


def running(*ranks: int) -> RankGroup:
    fate = RankGroup()
    for rank in ranks:
        assert fate.started(rank) is None
    fate.none_more()
    return fate


@pytest.mark.parametrize("end", [KILLED, UNSEEN])
def test_a_rank_takes_the_others_along(end: RankEnd) -> None:
    fate = running(1, 2)
    assert fate.follower_ended(2, "there", end) == 0.0
    assert fate.must_end()
    loss = Loss(f"rank 2 on there was lost ({end.reason})", end.status or ExitStatus(None, None))
    assert fate.loss == loss
    # The first one is to blame.
    assert fate.follower_ended(1, "here", KILLED) is None
    assert fate.loss == loss
    assert fate.leader_ended(LEFT) is None
    assert fate.over


def test_rank_0_takes_the_others_along() -> None:
    fate = running(1, 2)
    assert fate.leader_ended(KILLED) == 0.0
    assert fate.must_end()
    assert fate.follower_ended(1, "here", KILLED) is None
    assert not fate.over
    assert fate.follower_ended(2, "here", KILLED) is None
    assert fate.over
    assert fate.loss == Loss("rank 0 on this machine was lost (signal SIGKILL)", KILLED.status)
    assert not fate.must_end()


def test_an_order_to_end_is_given_once() -> None:
    fate = running(1, 2)
    fate.end()
    assert not fate.must_end()
    assert fate.follower_ended(1, "here", KILLED) is None
    assert fate.leader_ended(LEFT) is None
    assert fate.loss is None


def test_end_that_is_reported_twice_counts_once() -> None:
    fate = running(1, 2)
    fate.follower_ended(1, "here", KILLED)
    assert fate.follower_ended(1, "here", KILLED) is None
    assert not fate.followers_gone


def test_follower_that_leaves_was_ended_by_rank_0() -> None:
    fate = running(1)
    assert fate.follower_ended(1, "here", LEFT) == LEADER_FOLLOWS_S
    assert fate.loss is None
    fate.leader_ended(LEFT)
    assert fate.over
    assert not fate.must_end()


def test_unless_rank_0_stays() -> None:
    fate = running(1, 2)
    assert fate.follower_ended(1, "here", LEFT) == LEADER_FOLLOWS_S
    assert fate.follower_ended(2, "here", LEFT) == LEADER_FOLLOWS_S
    assert fate.must_end()
    assert fate.loss is not None
    assert fate.loss.reason == "rank 1 on here was lost (exit code 0)"


def test_rank_0_that_follows_late_has_no_loss() -> None:
    fate = running(1, 2)
    fate.follower_ended(1, "here", LEFT)
    assert fate.leader_ended(LEFT) == 0.0
    assert fate.must_end()
    assert fate.loss is None


@pytest.mark.parametrize(
    ("step", "then"),
    [
        (ShutdownStep.DUMP, ShutdownStep.TERMINATE),
        (ShutdownStep.ASK, ShutdownStep.TERMINATE),
        (ShutdownStep.TERMINATE, ShutdownStep.TERMINATE),
        (ShutdownStep.KILL, ShutdownStep.KILL),
    ],
)
def test_late_follower_gets_the_step_by_itself(step: ShutdownStep, then: ShutdownStep) -> None:
    fate = RankGroup()
    assert fate.started(1) is None
    assert fate.may_start
    fate.record_step(step)
    assert not fate.may_start
    assert fate.started(2) is then


def test_follower_that_starts_after_rank_0_ended_is_ended() -> None:
    fate = RankGroup()
    assert fate.leader_ended(LEFT) == 0.0
    assert not fate.may_start
    assert fate.started(1) is ShutdownStep.TERMINATE
    assert not fate.over
    fate.none_more()
    fate.follower_ended(1, "here", LEFT)
    assert fate.over


def test_as_long_as_one_may_come_it_is_not_over() -> None:
    fate = RankGroup()
    fate.leader_ended(LEFT)
    assert not fate.followers_gone
    assert not fate.over
    fate.none_more()
    assert fate.over
