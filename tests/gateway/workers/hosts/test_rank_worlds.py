"""In no world is a rank called ended that is alive, awaited for ever, or left without an order; and
in those of defects one is.
"""

from __future__ import annotations

import pytest
from gateway.workers.lease import Tenants

from gateway.workers.host import RankEnd
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


class AtOnce(Tenants):
    """Ranks are gone with their lease."""

    def lose(self, now: float, reason: str) -> None:
        super().lose(now - 1000.0, reason)


class WithoutGrace(Tenants):
    """Agents never die on the way."""

    def lose(self, now: float, reason: str) -> None:
        for each, most_bytes in self._most_bytes.items():
            self._ends_within(each, now - grace_s(most_bytes), reason)


class Optimistic(Tenants):
    """Of what no answer came, that was not started."""

    def unanswered(self, rank_id: str, reason: str) -> None:
        super().unanswered(rank_id, reason)
        self._ends_within(rank_id, -1000.0, reason)


class Patient(Tenants):
    """The host will say of everything that it has ended, even of what was never there."""

    def told(self, unwanted: tuple[str, ...], now: float) -> None:
        for each in unwanted:
            self._unwanted.pop(each, None)


class Discreet(Tenants):
    """The host never hears what is unwanted."""

    @property
    def unwanted(self) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize(
    "defect",
    [
        *(Alone, Headless, Trusting, Latecomer, Counting, Hasty, Forgetful),
        *(AtOnce, WithoutGrace, Optimistic, Patient, Discreet),
    ],
    ids=lambda each: each.__name__,
)
def test_a_defect_is_caught(defect: type[RankGroup] | type[Tenants]) -> None:
    class Defective(World):
        pass

    if issubclass(defect, RankGroup):
        Defective.fate = staticmethod(defect)
    else:
        Defective.tenants = staticmethod(defect)
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_worlds(Defective, 4000)
