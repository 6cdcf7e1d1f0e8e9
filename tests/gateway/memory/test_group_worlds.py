"""In no world are there two that exclude each other, half a group, or a room that is gone."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from gateway.config.model import Group, Groups
from gateway.memory.admission import Admission
from gateway.memory.admission_round import HOPELESS_S
from gateway.memory.allocation import Allocation
from gateway.memory.ledger import Claim, Decision, Ledger, RefuseSequence
from gateway.memory.reclaim import Reclaim
from tests.gateway.memory.account import LATER, UNIT, Account
from tests.gateway.memory.world import BUDGET, KINDS, MODELS, PATIENCE_S, SPARE, World
from tests.support.worlds import run_worlds

_KINDS = ("together", "swap", "reserve", "swap reserve", "together reserve")


class GroupedWorld(World):
    """Groups of every kind, which overlap where they may."""

    @initialize(
        floors=st.lists(st.integers(3, 60), min_size=3, max_size=MODELS),
        pinned=st.sets(st.integers(0, MODELS - 1), max_size=1),
        priorities=st.lists(st.integers(0, 2), min_size=MODELS, max_size=MODELS),
        lags_s=st.lists(st.sampled_from((0, 1, 3)), min_size=MODELS, max_size=MODELS),
        kinds=st.lists(st.sampled_from(KINDS), min_size=MODELS, max_size=MODELS),
        wanted=st.lists(
            st.tuples(
                st.sampled_from(_KINDS), st.sets(st.integers(0, MODELS - 1), min_size=2, max_size=3)
            ),
            min_size=1,
            max_size=3,
        ),
    )
    def create(
        self,
        floors: list[int],
        pinned: set[int],
        priorities: list[int],
        lags_s: list[int],
        kinds: list[str],
        wanted: list[tuple[str, set[int]]],
    ) -> None:
        super().create(floors, pinned, priorities, lags_s, kinds)
        groups: list[Group] = []
        for kind, numbers in wanted:
            names = tuple(str(number) for number in sorted(numbers) if str(number) in self.models)
            group = Group(kind, names, "together" in kind, "swap" in kind, "reserve" in kind)
            if len(names) > 1 and self._goes_with(group, groups):
                groups.append(group)
        self.admission.arrange(groups)
        for model in self.models.values():
            self.admission.know(model.name, model.floor)

    def _goes_with(self, new: Group, groups: list[Group]) -> bool:
        if new.swap and any(self.models[model].pinned for model in new.models):
            return False
        for group in groups:
            shared = {*group.models} & {*new.models}
            if shared and ((group.together and new.together) or (group.reserve and new.reserve)):
                return False
            if len(shared) > 1 and (group.together, group.swap) != (new.together, new.swap):
                return False
        return True

    def check(self) -> None:
        super().check()
        groups = self.admission.ledger.groups
        alive = {model.name for model in self.models.values() if model.process is not None}
        for group in groups.all:
            assert not group.swap or len(alive & {*group.models}) <= 1, "they exclude each other"
        reserved = 0
        for group in groups.reserving:
            sizes = [self.models[name].floor for name in group.models]
            reserved += max(sizes) if group.swap else sum(sizes)
        others = sum(
            model.floor
            for model in self.models.values()
            if model.process in ("loading", "ready") and not groups.reserved(model.name)
        )
        assert not others or others + reserved <= BUDGET, "the room that is kept is somebody's"


@pytest.mark.parametrize(
    ("worlds", "steps"),
    [
        pytest.param(50, 500, id="short"),
        pytest.param(200, 2_000, id="long", marks=pytest.mark.slow),
    ],
)
def test_random_worlds_with_groups(worlds: int, steps: int) -> None:
    World.steps = 0
    run_worlds(GroupedWorld, worlds)
    assert World.steps >= steps


def _half_a_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "_whole_claims", lambda self: list(self._claims.values()))


def _rivals_side_by_side(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "rivals", lambda _self, _names: [])


def _rivals_that_never_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Reclaim, "_may_evict_rival", lambda _self, _claim, rival: rival.idle and rival.evictable
    )


def _room_for_anybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "reserved_beside", lambda _self, _names: 0)


def _room_that_is_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Groups, "reserved", lambda _self, _name: False)


def _displaced_by_its_company(patch: pytest.MonkeyPatch) -> None:
    def companions(_self: Reclaim, _claim: Claim) -> frozenset[str]:
        return frozenset()

    patch.setattr(Reclaim, "_companions", companions)
    patch.setattr(Allocation, "idle", property(lambda self: not self.busy))


@pytest.mark.parametrize(
    "defect",
    [
        _half_a_group,
        _rivals_side_by_side,
        pytest.param(_rivals_that_never_part, marks=pytest.mark.slow),
        _room_for_anybody,
        _room_that_is_taken,
        pytest.param(_displaced_by_its_company, marks=pytest.mark.slow),
    ],
    ids=lambda item: item.__name__.strip("_"),
)
def test_a_defect_is_caught(defect: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(defect)
    defect(monkeypatch)

    class Defective(GroupedWorld):
        pass

    Defective.make = staticmethod(lambda: Admission(BUDGET, PATIENCE_S, SPARE))
    # The ledger itself refuses what some defects lead to.
    with pytest.raises((AssertionError, ExceptionGroup, ValueError)):
        run_worlds(Defective, 4000)


def test_sequence_that_fits_no_more_is_refused() -> None:
    """Its model and a member of a group with reserved room have grown beside their sequences."""
    account = Account()
    account.arrange([Group("reserved", ("loaded", "other"), False, False, True)])
    for name, floor in (("other", 30), ("loaded", 20)):
        account.load(name, floor, busy=True)
    account.need("loaded", used=20, wanted=60, least=60, held=1)
    account.obey(account.decide(LATER))
    assert account.limit("loaded") == 60
    account.need("other", used=30, wanted=50)
    account.obey(account.decide(LATER))
    account.footprint("other", 50)
    account.need("other", used=30)
    account.need("loaded", used=20, wanted=75, least=75, held=1)
    now, decisions = LATER, list[Decision]()
    while not any(isinstance(decision, RefuseSequence) for decision in decisions):
        now += 1.0
        assert now < LATER + 200.0, "the sequence waits for ever"
        decisions = account.decide(now)
        account.obey(decisions)
        account.footprint("other", 50)
        account.footprint("loaded", 20)
    assert now - LATER >= HOPELESS_S
    allocation = account.ledger.allocation("other")
    assert allocation is not None
    assert allocation.floor_bytes == 50 * UNIT, "the bytes that the process keeps are its floor"
    assert decisions == [RefuseSequence("loaded", 75 * UNIT, 50 * UNIT)]
    account.need("loaded", used=20)
    assert not any(
        isinstance(decision, RefuseSequence) for decision in account.decide(now + 2 * HOPELESS_S)
    )
