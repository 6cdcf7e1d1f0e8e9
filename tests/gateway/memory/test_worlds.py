"""No world passes the budget, starves a model, or loses bytes; and those of defects do."""

from __future__ import annotations

import msgspec
import pytest

from gateway.memory.admission import Admission
from gateway.memory.admission_round import AdmissionRound
from gateway.memory.allocation import MemoryNeed, WorkerReading
from gateway.memory.ledger import Claim, Decision
from tests.gateway.memory.world import BUDGET, MODELS, PATIENCE_S, PROMPT_S, SPARE, World
from tests.support.worlds import run_worlds


@pytest.mark.parametrize(
    ("worlds", "steps", "recalls"),
    [
        pytest.param(75, 1_750, 7, id="short"),
        pytest.param(400, 10_000, 50, id="long", marks=pytest.mark.slow),
    ],
)
def test_random_worlds(worlds: int, steps: int, recalls: int) -> None:
    World.steps = World.recalls = World.checks = 0
    run_worlds(World, worlds)
    if World.recalls < recalls:
        # Worlds of one run resemble each other: in one run of forty hardly any has a recall.
        run_worlds(World, 4 * worlds)
    assert World.steps >= steps
    assert World.recalls >= recalls
    assert World.checks >= recalls


def _world(kind: str, floors: list[int], priorities: list[int]) -> World:
    world = World()
    world.create(floors, set(), priorities, [0] * MODELS, [kind] * MODELS)
    return world


def test_silent_worker_takes_back_nothing_that_an_earlier_claim_waits_for() -> None:
    world = _world("keeps all", [41, 46], [2, 1])
    world.requests(number=1, length_s=150, size=20, count=4, prompt_s=0)
    world.requests(number=0, length_s=1, size=1, count=1, prompt_s=30)
    world.requests(number=0, length_s=1, size=20, count=1, prompt_s=0)
    world.it_hangs(number=1)
    world.teardown()


def test_rows_leave_room_for_what_their_worker_takes_beside_them() -> None:
    world = _world("constant", [53], [0])
    world.requests(number=0, length_s=1, size=5, count=9, prompt_s=PROMPT_S)
    world.teardown()
    world = _world("constant", [59, 30, 83], [0, 1, 2])
    world.requests(number=1, length_s=1, size=1, count=4, prompt_s=PROMPT_S)
    world.requests(number=2, length_s=1, size=1, count=1, prompt_s=0)
    world.requests(number=0, length_s=1, size=1, count=4, prompt_s=PROMPT_S)
    world.teardown()


class NoReservation(Admission):
    """What is admitted counts only when it shows in a footprint."""

    def decide(self, now: float) -> list[Decision]:
        decisions = super().decide(now)
        for allocation in self.ledger.allocations:
            allocation.limit_bytes = allocation.obeyed_bytes = 0
        return decisions


class LostWakeUp(Admission):
    """The end of a process wakes nobody who waits."""

    def gone(self, model_id: str) -> None:
        super().gone(model_id)
        self._claims = _Deaf()


class _Deaf(dict[str, Claim]):
    def setdefault(self, _key: str, default: Claim) -> Claim:  # type: ignore[override]
        return default


class ForgottenRelease(Admission):
    """A part of what a process held stays counted when it has ended."""

    def gone(self, model_id: str) -> None:
        if self.ledger.allocation(model_id) is not None:
            self.ledger.stranded_bytes += BUDGET // 10
        super().gone(model_id)


class NoPatience(Admission):
    """Waiting never gives a right to anything."""

    def decide(self, now: float) -> list[Decision]:
        self._patience_s = 1e9
        return super().decide(now)


class Everybody(AdmissionRound):
    """Whoever is busy, pinned or matters more has to go at once."""

    def take_stock(self) -> None:
        super().take_stock()
        self.reclaim._may_displace = lambda _claim, allocation: allocation.steady  # type: ignore[method-assign]


class Twice(Admission):
    """What ends is free before it has ended."""

    def decide(self, now: float) -> list[Decision]:
        decisions = super().decide(now)
        for allocation in self.ledger.allocations:
            if allocation.ending:
                allocation.limit_bytes = allocation.obeyed_bytes = allocation.footprint_bytes = 0
        return decisions


class TooEarly(Admission):
    """What is called back is free before the worker has given it."""

    def decide(self, now: float) -> list[Decision]:
        decisions = super().decide(now)
        for allocation in self.ledger.allocations:
            allocation.obeyed_bytes = min(allocation.obeyed_bytes, allocation.limit_bytes)
            allocation.footprint_bytes = min(allocation.footprint_bytes, allocation.limit_bytes)
        return decisions

    def record(self, model_id: str, reading: WorkerReading) -> None:
        allocation = self.ledger.allocation(model_id)
        assert allocation is not None
        limited_bytes = min(reading.footprint_bytes, allocation.limit_bytes)
        super().record(model_id, msgspec.structs.replace(reading, footprint_bytes=limited_bytes))

    def record_need(self, model_id: str, need: MemoryNeed, obeyed_bytes: int) -> None:
        allocation = self.ledger.allocation(model_id)
        assert allocation is not None
        super().record_need(model_id, need, min(obeyed_bytes, allocation.limit_bytes))


class LostGrant(AdmissionRound):
    """Two loads in one round are given the same bytes."""

    def serve(self, claim: Claim) -> bool:
        before_bytes = self._unclaimed_bytes
        granted = super().serve(claim)
        if granted:
            self._unclaimed_bytes = before_bytes
        return granted


@pytest.mark.parametrize(
    "defect",
    [
        NoReservation,
        LostWakeUp,
        ForgottenRelease,
        NoPatience,
        Everybody,
        Twice,
        TooEarly,
        LostGrant,
    ],
    ids=lambda item: item.__name__,
)
def test_a_defect_is_caught(
    defect: type[Admission] | type[AdmissionRound], monkeypatch: pytest.MonkeyPatch
) -> None:
    if issubclass(defect, AdmissionRound):
        monkeypatch.setattr("gateway.memory.admission.AdmissionRound", defect)
    make = defect if issubclass(defect, Admission) else Admission

    class Defective(World):
        pass

    Defective.make = staticmethod(lambda: make(BUDGET, PATIENCE_S, SPARE))
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_worlds(Defective, 4000)
