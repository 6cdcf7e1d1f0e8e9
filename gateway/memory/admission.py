"""Decides which models may hold memory, and how much: which model is loaded next, and which loans
are given and called back.

No I/O and no clock here; `gateway.memory.scheduler` reports events to `Admission` and carries out
its decisions. Times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Final

from gateway.config.model import Group, Groups
from gateway.memory.admission_round import AdmissionRound
from gateway.memory.allocation import NEVER, MemoryNeed, WorkerReading
from gateway.memory.check_room import CheckRoom
from gateway.memory.ledger import NOISE_BYTES, Claim, Decision, Ledger, MemoryOrders, Refuse
from gateway.memory.reclaim import worth
from gateway.system.memory_reading import Pressure


class Admission:
    """Keeps the sum of floors and loans within the budget.

    Models that wait for memory get it in the order of their priority, then of their waiting time.
    Models that have waited for `patience_s` come first. A busy model is evicted (displaced) only
    for a model that has waited so long, or that has a higher priority. Room is made in this order:

    1. free bytes;
    2. idle loans;
    3. idle models, first those whose eviction costs least (`worth` in `reclaim`);
    4. the running sequences of models with no higher priority, or after `patience_s` of any model:
       the sequences leave their batch, and go on when there is room again;
    5. busy models.

    Bytes that are being freed for one model aren't given to models behind it. While a model waits
    for busy models, other models that fit may pass it. Bytes that no model waits for are lent
    (`gateway.memory.loans`). If requests wait for memory in a loaded model, the room of the spare
    is lent after a while, and idle models are evicted (`IdleEviction`).

    Models of a group that loads `together` get their memory in one turn or not at all. Of a group
    with `swap` one model holds memory at a time, and the next model waits until that one has ended.
    Room that a group keeps (`reserve`) may be lent, but only models of the group are loaded there.
    """

    def __init__(self, budget_bytes: int, patience_s: float, spare_bytes: int = 0) -> None:
        """Spares get `spare_bytes` if there is room."""
        self.ledger = Ledger(budget_bytes)
        self._wanted_spare_bytes = spare_bytes
        self._patience_s = patience_s
        self._claims: dict[str, Claim] = {}
        # Models that ended while their next sequence waited for memory, and since when it waited.
        self._unserved: dict[str, float] = {}
        # Models that will ask for memory soon, since a companion has asked.
        self._expected: set[str] = set()

    @property
    def claims(self) -> Iterable[Claim]:
        """The claims of models that wait to be loaded."""
        return self._claims.values()

    # Events

    def arrange(self, groups: Iterable[Group]) -> None:
        """Replace the groups."""
        self.ledger.arrange(Groups(groups))

    def know(self, model_id: str, floor_bytes: int) -> None:
        """Note the floor of a model, so that room can be kept for it."""
        self.ledger.floors[model_id] = floor_bytes

    def expect(self, model_id: str) -> None:
        """Note that a model will soon ask for memory or withdraw. Its companions, the models that
        are loaded together with it, wait until it does.
        """
        if self.ledger.allocation(model_id) is None and model_id not in self._claims:
            self._expected.add(model_id)

    def ask(
        self,
        model_id: str,
        needed_bytes: int,
        priority: int,
        now: float,
        *,
        pinned: bool = False,
    ) -> None:
        """Enter the claim of a model that waits to be loaded. If the model asks again, it keeps the
        time of its first claim.
        """
        if self.ledger.allocation(model_id) is not None:
            raise ValueError(f"{model_id} holds memory already")
        self._expected.discard(model_id)
        self.know(model_id, needed_bytes)
        since = self._unserved.pop(model_id, now)
        claim = self._claims.setdefault(model_id, Claim(model_id, needed_bytes, priority, since))
        claim.needed_bytes = needed_bytes
        claim.priority = priority
        claim.pinned = pinned

    def withdraw(self, model_id: str) -> None:
        """Drop the claim of a model that doesn't wait to be loaded any more."""
        self._expected.discard(model_id)
        self._claims.pop(model_id, None)
        self._unserved.pop(model_id, None)

    def record_use(self, model_id: str, *, priority: int, busy: bool, last_used: float) -> None:
        """Record how a model is used."""
        if (claim := self._claims.get(model_id)) is not None:
            claim.priority = priority
        if (allocation := self.ledger.allocation(model_id)) is not None:
            allocation.priority = priority
            allocation.busy = busy
            allocation.last_used = last_used

    def record(self, model_id: str, reading: WorkerReading) -> None:
        """Record a reading of the model's worker."""
        if (allocation := self.ledger.allocation(model_id)) is not None:
            allocation.record(reading)

    def record_need(self, model_id: str, need: MemoryNeed, obeyed_bytes: int) -> None:
        """Record what a worker could use, and that it keeps to a limit of `obeyed_bytes`."""
        if (allocation := self.ledger.allocation(model_id)) is not None:
            allocation.need = need
            allocation.obeyed_bytes = obeyed_bytes

    def ready(self, model_id: str, now: float, *, reload_s: float = 0.0) -> None:
        """Note that a model is loaded: it may borrow, and may be evicted unless it is pinned."""
        allocation = self.ledger.allocation(model_id)
        assert allocation is not None
        allocation.ready_at = now
        allocation.reload_s = reload_s

    def pin(self, model_id: str, *, pinned: bool) -> None:
        """Note whether a model is pinned. A pinned model is never evicted."""
        if (claim := self._claims.get(model_id)) is not None:
            claim.pinned = pinned
        if (allocation := self.ledger.allocation(model_id)) is not None:
            allocation.pinned = pinned

    def ending(self, model_id: str) -> None:
        """Note that a model's process is being ended."""
        if (allocation := self.ledger.allocation(model_id)) is not None:
            allocation.ending = True

    def gone(self, model_id: str) -> None:
        """Note that a model's process has ended. Its memory is free."""
        allocation = self.ledger.remove(model_id)
        if allocation is not None and allocation.starved_since is not None:
            self._unserved[model_id] = allocation.starved_since

    def configure(self, budget_bytes: int, patience_s: float, spare_bytes: int) -> None:
        """Replace the limits. The next decisions evict the models that don't fit any more."""
        self.ledger.budget_bytes = budget_bytes
        self._patience_s = patience_s
        self._wanted_spare_bytes = spare_bytes

    def reserve_spare(self, spare_bytes: int) -> None:
        """Keep `spare_bytes` for spares, after a worker without a model was measured."""
        self._wanted_spare_bytes = spare_bytes

    def want_check(self, check: CheckRoom | None) -> None:
        """Note the check that wants memory; None: there is none, or its process has ended."""
        self.ledger.check = check

    # Decisions

    def decide(self, now: float) -> list[Decision]:
        """Decide by the present account. To be called after each change, and as time passes.

        Each decision is entered into the account at once, so no two decisions use the same bytes.
        """
        self.ledger.share_companions(self._claims)
        this_round = AdmissionRound(self.ledger, now, self._patience_s)
        self._decide_on_check(this_round)
        self._decide_on_spare(this_round)
        this_round.take_stock()
        refused: list[Decision] = []
        for claim in self._in_turn(this_round):
            if claim.loan:
                this_round.serve(claim)
            elif self._waits_for(claim):
                continue
            elif claim.needed_bytes > (possible := self.ledger.possible_among(claim.model_ids)):
                names = sorted(claim.model_ids)
                for part in claim.single_claims:
                    others = tuple(name for name in names if name != part.model_id)
                    refused.append(Refuse(part.model_id, claim.needed_bytes, possible, others))
                self._forget(claim)
            elif this_round.serve(claim):
                self._forget(claim)
        this_round.lend()
        return refused + this_round.orders.decisions

    def foresee(
        self, floors: dict[str, int], priority: int, now: float
    ) -> tuple[list[Decision], list[Decision]]:
        """The decisions that a load of these models would bring about if nothing else happened: a
        list of the decisions at once, and a list of those after a wait of `patience_s`. The account
        stays as it is.
        """
        rounds = []
        for later_s in (0.0, self._patience_s):
            trial = copy.deepcopy(self)
            for model_id, floor_bytes in floors.items():
                if trial.ledger.allocation(model_id) is None:
                    trial.ask(model_id, floor_bytes, priority, now)
            rounds.append(trial.decide(now + later_s))
        return rounds[0], rounds[1]

    def relieve(self, now: float, *, all_idle: bool) -> list[Decision]:
        """Give memory back to a machine that is short of memory. End a check. If there is none,
        call back the part of each loan that no sequence needs. If no loan has such a part, evict
        the idle model with the least `worth`; a model with reserved room goes last. With `all_idle`
        do all of this.
        """
        orders = MemoryOrders(self.ledger, now)
        if self.ledger.check is not None and self.ledger.check.end() and not all_idle:
            return []
        lent = [
            allocation
            for allocation in self.ledger.steady
            if allocation.unneeded_loan_bytes > NOISE_BYTES
        ]
        for allocation in lent:
            orders.recall(allocation, allocation.limit_bytes - allocation.unneeded_loan_bytes)
        if not lent or all_idle:
            self.ledger.share_companions(self._claims)
            idle = [
                allocation
                for allocation in self.ledger.allocations
                if allocation.evictable and allocation.idle
            ]
            idle.sort(key=lambda allocation: (allocation.reserved, *worth(allocation, now)))
            for allocation in idle if all_idle else idle[:1]:
                orders.evict(allocation, None)
        return orders.decisions

    def _decide_on_check(self, this_round: AdmissionRound) -> None:
        """Give a check memory that no model waits for, or end the check if a model has too little.
        No model is evicted for a check. Claims end a check in their turn (`AdmissionRound.serve`).
        """
        ledger, check = self.ledger, self.ledger.check
        if check is None:
            return
        free_bytes = ledger.free_bytes
        short = [allocation for allocation in ledger.steady if allocation.short]
        if check.granted_bytes:
            wanted_bytes = sum(
                allocation.need.wanted_bytes - allocation.limit_bytes for allocation in short
            )
            if free_bytes < 0 or wanted_bytes > free_bytes:
                check.end()
        elif self._claims or short:
            return
        elif check.least_bytes <= free_bytes:
            check.grant(free_bytes)
        else:
            this_round.loans.recall_idle(check.least_bytes - free_bytes - ledger.coming_bytes)

    def _decide_on_spare(self, this_round: AdmissionRound) -> None:
        """Set the room of spares, which get only memory that no model waits for."""
        ledger = self.ledger
        if ledger.spare_bytes > self._wanted_spare_bytes or ledger.free_bytes < 0:
            ledger.spare_bytes = 0
        more_bytes = self._wanted_spare_bytes - ledger.spare_bytes
        waited_for = self._claims or any(allocation.short for allocation in ledger.steady)
        if waited_for or more_bytes <= 0:
            return
        if more_bytes <= ledger.free_bytes:
            ledger.spare_bytes = self._wanted_spare_bytes
        else:
            this_round.loans.recall_idle(more_bytes - ledger.free_bytes - ledger.coming_bytes)

    def _in_turn(self, this_round: AdmissionRound) -> list[Claim]:
        def key(claim: Claim) -> tuple[bool, bool, int, float]:
            overdue = this_round.reclaim.overdue(claim)
            # Until its sequence runs, the protection of a model is of no use, so its claim comes
            # first.
            allocation = self.ledger.allocation(claim.model_id)
            urgent = allocation is not None and this_round.reclaim.is_protected(allocation)
            return (not urgent, not overdue, 0 if overdue else -claim.priority, claim.since)

        return sorted([*self._whole_claims(), *this_round.loan_claims()], key=key)

    def _whole_claims(self) -> list[Claim]:
        """The claims of models that wait to be loaded. Models that are loaded together have one."""
        whole_claims = []
        taken: set[str] = set()
        for model_id, claim in self._claims.items():
            if model_id in taken:
                continue
            companions = self.ledger.groups.companions(model_id)
            parts = [
                claim,
                *(self._claims[companion] for companion in companions if companion in self._claims),
            ]
            taken.update(part.model_id for part in parts)
            whole_claims.append(claim if len(parts) == 1 else _joined(parts))
        return whole_claims

    def _waits_for(self, claim: Claim) -> bool:
        """Whether the claim has to wait for a companion. The companion will ask soon, or it is
        ending and may ask after its end.
        """
        if not self.ledger.groups.all:
            return False
        companions = self.ledger.groups.companions_of(claim.model_ids)
        allocations = map(self.ledger.allocation, companions)
        ending = any(allocation is not None and allocation.ending for allocation in allocations)
        return ending or not self._expected.isdisjoint(companions)

    def _forget(self, claim: Claim) -> None:
        for part in claim.single_claims:
            del self._claims[part.model_id]


def _joined(parts: list[Claim]) -> Claim:
    return Claim(
        parts[0].model_id,
        sum(part.needed_bytes for part in parts),
        max(claim.priority for claim in parts),
        min(part.since for part in parts),
        parts=tuple(parts),
    )


_LEVELS: Final[tuple[Pressure, ...]] = ("warn", "critical")
# A pressure that lasts for less is ignored.
_LASTS_S: Final = 5.0
# After so long memory that was given back shows in the machine's figures.
_BETWEEN_RELIEFS_S: Final = 10.0


class Shortage:
    """Judges whether the whole machine is short of memory, by a few readings a second."""

    def __init__(self) -> None:
        self._since: dict[Pressure, float] = {}
        self._relieved_at = NEVER

    def to_relieve(self, pressure: Pressure | None, now: float) -> Pressure | None:
        """The level of pressure to relieve now; None: the machine is not short of memory, or the
        last relief may not show yet.
        """
        lasting = self.lasting(pressure, now)
        if lasting is None or now - self._relieved_at < _BETWEEN_RELIEFS_S:
            return None
        self._relieved_at = now
        return lasting

    def lasting(self, pressure: Pressure | None, now: float) -> Pressure | None:
        """The highest level of pressure that the machine has been at, or above, for `_LASTS_S`;
        None: the machine is not short of memory.
        """
        reached = _LEVELS[: _LEVELS.index(pressure) + 1] if pressure in _LEVELS else ()
        self._since = {model_id: self._since.get(model_id, now) for model_id in reached}
        lasting = [model_id for model_id in reached if now - self._since[model_id] >= _LASTS_S]
        return lasting[-1] if lasting else None
