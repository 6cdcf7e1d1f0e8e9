"""In no world is a rank called ended that is alive, awaited for ever, or left without an order; and
in those of defects one is.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.workers.host import RankEnd
from gateway.workers.lifeline import SILENCE_S, gone_at
from gateway.workers.rank_group import RankGroup
from gateway.workers.shutdown_steps import ShutdownStep
from protocol.process import grace_s
from tests.gateway.workers.hosts.rank_world import World
from tests.support.worlds import run_worlds


@pytest.mark.parametrize(
    ("worlds", "incarnations", "lost"),
    [
        pytest.param(80, 300, 3, id="short"),
        pytest.param(1000, 5_000, 50, id="long", marks=pytest.mark.slow),
    ],
)
def test_random_worlds(worlds: int, incarnations: int, lost: int) -> None:
    World.incarnations = World.lost_elsewhere = 0
    run_worlds(World, worlds)
    assert World.incarnations >= incarnations
    assert World.lost_elsewhere >= lost


class Alone(RankGroup):
    """A follower that ends takes nobody along."""

    def follower_ended(self, rank: int, host: str, end: RankEnd) -> float | None:
        super().follower_ended(rank, host, end)
        return None


class Headless(RankGroup):
    """Followers go on without rank 0."""

    def leader_ended(self, end: RankEnd) -> float | None:
        super().leader_ended(end)
        return None


class Trusting(RankGroup):
    """Of a follower that leaves without a fault it is believed for ever that rank 0 knows why."""

    def must_end(self) -> bool:
        return super().must_end() and self._left is None


class Latecomer(RankGroup):
    """One that was on its way while the others were told is not told."""

    def started(self, rank: int) -> ShutdownStep | None:
        super().started(rank)
        return None


class Counting(RankGroup):
    """An end that is told twice is another one's."""

    def follower_ended(self, rank: int, host: str, end: RankEnd) -> float | None:
        if rank not in self._running and self._running:
            rank = min(self._running)
        return super().follower_ended(rank, host, end)


class Hasty(RankGroup):
    """It is over with rank 0."""

    @property
    def over(self) -> bool:
        return self._leader_ended


class Forgetful(RankGroup):
    """One that is about to be started doesn't count."""

    @property
    def over(self) -> bool:
        return self._leader_ended and not self._running


def at_once(now: float, _last_pong_at: float, _most_bytes: int) -> float:
    """Ranks are gone with their session."""
    return now


def without_silence(now: float, _last_pong_at: float, most_bytes: int) -> float:
    """The remote program always finds the end of its pipe."""
    return gone_at(now, now - SILENCE_S, most_bytes)


def without_grace(now: float, last_pong_at: float, most_bytes: int) -> float:
    """Remote programs never die on the way."""
    return gone_at(now, last_pong_at, most_bytes) - grace_s(most_bytes) - 2.0


@pytest.mark.parametrize(
    "defect",
    [Alone, Headless, Trusting, Latecomer, Counting, Hasty, Forgetful],
    ids=lambda defect: defect.__name__,
)
def test_defect_of_the_group_is_caught(defect: type[RankGroup]) -> None:
    class Defective(World):
        fate = staticmethod(defect)

    with pytest.raises((AssertionError, ExceptionGroup)):
        run_worlds(Defective, 4000)


@pytest.mark.parametrize("defect", [at_once, without_silence, without_grace])
def test_defect_of_the_lifeline_is_caught(
    defect: Callable[[float, float, int], float],
) -> None:
    class Defective(World):
        gone_at = staticmethod(defect)

    with pytest.raises((AssertionError, ExceptionGroup)):
        run_worlds(Defective, 4000)
