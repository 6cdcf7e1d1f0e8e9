"""Which rank began it, by how each has ended, in whatever order that was told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.system.child import ExitStatus
from gateway.workers.host import THIS_MACHINE, RankEnd
from gateway.workers.rank_group import Loss, RankFailure
from gateway.workers.shutdown_steps import ShutdownStep
from protocol.process import LEFT_ALONE

KILLED = ExitStatus(None, "SIGKILL")
ALONE = ExitStatus(LEFT_ALONE, None)
WELL = ExitStatus(0, None)

# What the loss of another rank leads to, each with the last step that was taken before.
CONSEQUENCES = [
    (ALONE, None),
    (ALONE, ShutdownStep.TERMINATE),
    (WELL, ShutdownStep.TERMINATE),
    (ExitStatus(None, "SIGTERM"), ShutdownStep.TERMINATE),
    (ExitStatus(1, None), ShutdownStep.TERMINATE),
    (KILLED, ShutdownStep.KILL),
]


def _end(status: ExitStatus | None, reason: str | None = None) -> RankEnd:
    return RankEnd(status, str(status) if reason is None else reason)


def _judge(
    *ends: tuple[int, RankEnd, ShutdownStep | None], missed: int | None = None
) -> Loss | None:
    judged = RankFailure()
    if missed is not None:
        judged.missed(missed, f"host-{missed}")
    for rank, end, step in ends:
        judged.ended(rank, f"host-{rank}" if rank else THIS_MACHINE, end, step)
    return judged.loss


others = st.lists(st.sampled_from(CONSEQUENCES), min_size=1, max_size=5)
own_steps = st.sampled_from([None, ShutdownStep.TERMINATE])


@given(st.data(), others, own_steps, st.booleans())
def test_death_is_named_whenever_it_is_reported(
    data: st.DataObject,
    consequences: list[tuple[ExitStatus, ShutdownStep]],
    step: ShutdownStep,
    missed: bool,
) -> None:
    victim = data.draw(st.integers(0, len(consequences)))
    rest = [rank for rank in range(len(consequences) + 1) if rank != victim]
    ends = [
        (rank, _end(status), step) for rank, (status, step) in zip(rest, consequences, strict=True)
    ]
    ends.append((victim, _end(KILLED), step))
    loss = _judge(*data.draw(st.permutations(ends)), missed=rest[0] if missed else None)
    host = f"host-{victim}" if victim else "this machine"
    assert loss == Loss(f"rank {victim} on {host} was lost (signal SIGKILL)", KILLED)


@given(st.data(), others)
def test_rank_that_rank_0_missed_is_named(
    data: st.DataObject, consequences: list[tuple[ExitStatus, ShutdownStep]]
) -> None:
    """It was stopped, say: nothing in its end tells it from the others."""
    victim = data.draw(st.integers(1, len(consequences)))
    ends = [
        (rank, _end(*consequence[:1]), consequence[1])
        for rank, consequence in enumerate(consequences, start=1)
    ]
    ends[victim - 1] = (victim, _end(KILLED), ShutdownStep.KILL)
    ends.append((0, _end(ALONE), None))
    loss = _judge(*data.draw(st.permutations(ends)), missed=victim)
    reason = f"rank {victim} on host-{victim} was lost (rank 0 heard nothing of it any more)"
    assert loss == Loss(reason, KILLED)


def test_it_is_named_before_anything_has_ended() -> None:
    loss = _judge(missed=2)
    assert loss is not None
    assert loss.reason == "rank 2 on host-2 was lost (rank 0 heard nothing of it any more)"


def test_a_host_out_of_reach_is_named_with_what_became_of_the_worker() -> None:
    out = _end(None, "studio2 has been out of reach for 10 s")
    loss = _judge((0, _end(ALONE), None), (1, out, ShutdownStep.TERMINATE))
    assert loss == Loss("rank 1 on host-1 was lost (studio2 has been out of reach for 10 s)", ALONE)


def test_an_agent_that_ends_its_ranks_is_named() -> None:
    """They end as they should, with code 0, which is no end of a model that serves."""
    ended = RankEnd(WELL, "its host's agent has ended it, as its agent ends: exit code 0", True)
    for ends in (
        [(1, ended, None), (0, _end(ALONE), None)],
        [(0, _end(ALONE), None), (1, ended, ShutdownStep.TERMINATE)],
    ):
        loss = _judge(*ends, missed=1)
        assert loss == Loss(f"rank 1 on host-1 was lost ({ended.reason})", ALONE)
    loss = _judge((1, ended, None), (0, _end(WELL), ShutdownStep.TERMINATE))
    assert loss is not None
    assert loss.status == ExitStatus(None, None)


def test_rank_that_a_stranger_ended_is_named() -> None:
    loss = _judge((1, _end(WELL), None), (0, _end(ALONE), None), missed=1)
    assert loss == Loss("rank 1 on host-1 was lost (exit code 0)", ALONE)


def test_rank_0_is_named_if_the_others_hear_nothing_of_it() -> None:
    loss = _judge(
        (2, _end(ALONE), None),
        (1, _end(ALONE), ShutdownStep.TERMINATE),
        (0, _end(KILLED), ShutdownStep.KILL),
    )
    assert loss == Loss(
        "rank 0 on this machine was lost (the others heard nothing of it any more)", KILLED
    )


def test_of_several_faults_it_is_the_first() -> None:
    crash = ExitStatus(None, "SIGSEGV")
    loss = _judge((2, _end(crash), None), (0, _end(ExitStatus(1, None)), None))
    assert loss == Loss("rank 2 on host-2 was lost (signal SIGSEGV)", crash)


@given(st.lists(st.sampled_from([ALONE, WELL, KILLED, ExitStatus(1, None)]), max_size=4))
def test_after_rank_0_has_ended_in_order_none_is_lost(statuses: list[ExitStatus]) -> None:
    """As after a drain, which it hears of alone. A host may take long to give memory back."""
    ends = [(rank, _end(status), None) for rank, status in enumerate(statuses, start=1)]
    assert _judge((0, _end(WELL), None), *ends) is None


def test_without_a_fault_none_was_lost() -> None:
    assert _judge((1, _end(WELL), None), (0, _end(WELL), None)) is None
    assert _judge((1, _end(ExitStatus(None, "SIGTERM")), ShutdownStep.TERMINATE)) is None
