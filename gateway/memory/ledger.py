"""The account of memory: the bytes that models hold and wait for, the rest of the budget, and the
decisions that change them.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

from msgspec import Struct

from gateway.config.model import Group, Groups, reserved_bytes
from gateway.memory.allocation import NEVER, Allocation
from gateway.memory.check_room import CheckRoom


class Claim(Struct):
    """A model's wait for `needed_bytes` of memory, since a time, and with a priority.

    A model without a process claims its floor. A loaded model (`loan`) claims the bytes without
    which its next sequence can't go on. Models that are loaded together have one claim, which has
    the name of one of the models, and a part for each model.
    """

    model_id: str
    needed_bytes: int
    priority: int
    since: float
    loan: bool = False
    pinned: bool = False
    parts: tuple[Claim, ...] = ()

    @property
    def single_claims(self) -> tuple[Claim, ...]:
        """The parts of the claim, or the claim itself if it has no parts."""
        return self.parts or (self,)

    @property
    def model_ids(self) -> frozenset[str]:
        return frozenset(part.model_id for part in self.single_claims)


class Ledger:
    """All allocations, and the rest of the budget. Companions of a model are other models of its
    groups that are loaded together with it.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.stranded_bytes = 0
        # The part of `stranded_bytes` that may still come back.
        self.undecided_bytes = 0
        # The room that is kept for spares now.
        self.spare_bytes = 0
        # The check that has memory or waits for it.
        self.check: CheckRoom | None = None
        self.groups = Groups()
        # The floors that are known: of members of groups, and of models that asked for memory.
        self.floors: dict[str, int] = {}
        self._allocations: dict[str, Allocation] = {}
        self._asking: Collection[str] = ()

    @property
    def allocations(self) -> Iterable[Allocation]:
        return self._allocations.values()

    @property
    def steady(self) -> list[Allocation]:
        return [allocation for allocation in self._allocations.values() if allocation.steady]

    @property
    def loading(self) -> list[Allocation]:
        return [e for e in self._allocations.values() if e.ready_at is None and not e.ending]

    @property
    def committed_bytes(self) -> int:
        held = sum(allocation.committed_bytes for allocation in self._allocations.values())
        return held + self.spare_bytes + self.check_bytes

    @property
    def check_bytes(self) -> int:
        """The bytes that the process of a check may hold."""
        return 0 if self.check is None else self.check.granted_bytes

    @property
    def coming_bytes(self) -> int:
        """Bytes that are being freed: by the ends of models and of a check, and by recalls."""
        check_bytes = 0 if self.check is None else self.check.coming_bytes
        return check_bytes + sum(
            allocation.coming_bytes for allocation in self._allocations.values()
        )

    @property
    def ending_bytes(self) -> int:
        """The part of `coming_bytes` that ending models and an ending check hold."""
        check_bytes = 0 if self.check is None else self.check.coming_bytes
        return check_bytes + sum(
            allocation.committed_bytes
            for allocation in self._allocations.values()
            if allocation.ending
        )

    @property
    def usable_bytes(self) -> int:
        """The budget less the stranded bytes."""
        return max(0, self.budget_bytes - self.stranded_bytes)

    @property
    def free_bytes(self) -> int:
        return self.usable_bytes - self.committed_bytes

    @property
    def possible_bytes(self) -> int:
        """The most bytes that a model of no group could get."""
        return self.possible_among(())

    def possible_among(self, model_ids: Collection[str]) -> int:
        """The most bytes that these models could get together. Pinned models keep their floors, and
        so do companions, and reserved models that aren't rivals.
        """
        going = self.groups.rivals(model_ids)
        companions = self.groups.companions_of(model_ids)
        staying = {
            allocation.model_id: allocation.floor_bytes
            for allocation in self._allocations.values()
            if not allocation.ending
            and allocation.model_id not in model_ids
            and (
                allocation.pinned
                or allocation.model_id in companions
                or (allocation.reserved and allocation.model_id not in going)
            )
        }
        reserved_bytes = self._reserved_bytes({*staying, *model_ids})
        return self.usable_bytes - sum(staying.values()) - reserved_bytes

    def possible_for(self, model_id: str) -> int:
        """The most bytes that one model could get beside the floors of its companions, whether the
        companions are loaded yet or not.
        """
        companions = self.groups.companions(model_id)
        absent = [companion for companion in companions if not self.is_present(companion)]
        reserved = [text for text in absent if self.groups.reserved(text)]
        absent_bytes = sum(self.floors.get(name, 0) for name in absent)
        counted_bytes = sum(self.floors.get(name, 0) for name in reserved)
        return self.possible_among({model_id}) - absent_bytes + counted_bytes

    def attainable_bytes(self, model_id: str) -> int | None:
        """The most bytes that a loaded model could get if all other models gave back what they can.
        Stranded bytes that may still come back count as free. None: the model isn't loaded.
        """
        if model_id not in self._allocations:
            return None
        return self.possible_for(model_id) + self.undecided_bytes

    def reserved_beside(self, model_ids: Iterable[str]) -> int:
        """Bytes to keep free beside these models, for reserved models that aren't loaded."""
        there = filter(self.is_present, self._allocations)
        return self._reserved_bytes({*there, *model_ids})

    def reserved_for(self, group: Group) -> int:
        """Bytes to keep free for the members of one group."""
        there = {model for model in group.models if self.is_present(model)}
        return reserved_bytes(group, self.floors, there)

    def _reserved_bytes(self, present: Collection[str]) -> int:
        return sum(reserved_bytes(group, self.floors, present) for group in self.groups.reserving)

    def is_present(self, model_id: str) -> bool:
        """Whether a model is loaded, or about to be, and isn't ending."""
        allocation = self._allocations.get(model_id)
        return allocation is not None and not allocation.ending

    def arrange(self, groups: Groups) -> None:
        """Replace the groups."""
        self.groups = groups
        for allocation in self._allocations.values():
            allocation.reserved = groups.reserved(allocation.model_id)
            (
                allocation.companions_busy,
                allocation.companions_used,
                allocation.companions_protected_at,
            ) = (
                False,
                NEVER,
                NEVER,
            )

    def share_companions(self, asking: Collection[str]) -> None:
        """Note for each model how its companions are used. A companion that asks for memory counts
        as busy.
        """
        self._asking = asking
        for allocation in self._allocations.values() if self.groups.all else ():
            names = self.groups.companions(allocation.model_id)
            companions = [self._allocations[name] for name in names if name in self._allocations]
            asks = any(name in asking for name in names)
            allocation.companions_busy = asks or any(other.busy for other in companions)
            allocation.companions_used = max(
                (other.last_used for other in companions), default=NEVER
            )
            allocation.companions_protected_at = max(
                (other.protection_start for other in companions), default=NEVER
            )

    def rivals(self, model_ids: Iterable[str]) -> list[Allocation]:
        """Models that hold memory, and may not be loaded beside these models."""
        names = self.groups.rivals(model_ids)
        return [self._allocations[name] for name in names if name in self._allocations]

    def floor_bytes(self, model_ids: Iterable[str]) -> int:
        """The sum of the floors of these models, but for those without an allocation or ending."""
        allocations = map(self._allocations.get, model_ids)
        return sum(
            allocation.floor_bytes
            for allocation in allocations
            if allocation is not None and not allocation.ending
        )

    def allocation(self, model_id: str) -> Allocation | None:
        return self._allocations.get(model_id)

    def enter(self, claim: Claim) -> None:
        """Reserve the floor that is claimed. The model's process may take it from now on."""
        floor_bytes = claim.needed_bytes
        self._allocations[claim.model_id] = Allocation(
            claim.model_id,
            claim.priority,
            claim.since,
            floor_bytes,
            limit_bytes=floor_bytes,
            obeyed_bytes=floor_bytes,
            pinned=claim.pinned,
            reserved=self.groups.reserved(claim.model_id),
        )
        self.share_companions(self._asking)

    def adopt(self, allocation: Allocation) -> None:
        """Enter a model that got its memory from an earlier gateway."""
        self._allocations[allocation.model_id] = allocation

    def remove(self, model_id: str) -> Allocation | None:
        """Remove a model whose process has ended. Its memory is free."""
        return self._allocations.pop(model_id, None)


class Admit(Struct, frozen=True):
    """The model may start; the bytes of its floor are reserved."""

    model_id: str
    floor_bytes: int


class LimitChange(Struct, frozen=True):
    """The model's limit is now `limit_bytes`: lowered by a `recall`, or raised by a loan."""

    model_id: str
    limit_bytes: int
    recall: bool


class Evict(Struct, frozen=True):
    """The model has to end, for another model or because memory is short. Its memory is free only
    when it has ended.
    """

    model_id: str
    for_model_id: str | None
    busy: bool


class Replace(Struct, frozen=True):
    """The worker has to be replaced: it holds more than its limit, did not shrink, and the budget
    has no room for the difference.
    """

    model_id: str
    footprint_bytes: int
    limit_bytes: int


class Unanswered(Struct, frozen=True):
    """The worker was asked to give memory back, and has not answered for so many seconds."""

    model_id: str
    seconds: float


class Refuse(Struct, frozen=True):
    """The model can't be admitted, whatever is evicted. `needed_bytes` is its floor and the floors
    of `together`, the models that are loaded with it.
    """

    model_id: str
    needed_bytes: int
    possible_bytes: int
    together: tuple[str, ...] = ()


class RefuseSequence(Struct, frozen=True):
    """A sequence that waits in the model's worker needs more than the model can ever get."""

    model_id: str
    needed_bytes: int
    possible_bytes: int


Decision: TypeAlias = Admit | LimitChange | Evict | Replace | Unanswered | Refuse | RefuseSequence


# Numbers of bytes that differ by less count as equal, since readings vary.
NOISE_BYTES: Final = 32_000_000


class MemoryOrders:
    """The decisions of one round, entered into the ledger as they are made."""

    def __init__(self, ledger: Ledger, now: float) -> None:
        self.decisions: list[Decision] = []
        self._ledger = ledger
        self._now = now

    def admit(self, claim: Claim) -> None:
        self._ledger.enter(claim)
        self.decisions.append(Admit(claim.model_id, claim.needed_bytes))

    def lend(self, allocation: Allocation, limit_bytes: int) -> None:
        self._set_limit(allocation, limit_bytes, recall=False)
        if not allocation.returning_bytes:
            allocation.recalled_at = None

    def recall(self, allocation: Allocation, limit_bytes: int) -> None:
        if allocation.recalled_at is None or allocation.answered:
            allocation.recalled_at = self._now
            allocation.recalled_from_bytes = allocation.obeyed_bytes
        self._set_limit(allocation, limit_bytes, recall=True)

    def recall_some(self, allocation: Allocation, wanted_bytes: int, most_bytes: int) -> int:
        """Call back `wanted_bytes`, at most `most_bytes`. Returns the bytes called back."""
        bytes_ = min(wanted_bytes, most_bytes)
        if bytes_ <= 0:
            return 0
        self.recall(allocation, allocation.limit_bytes - bytes_)
        return bytes_

    def evict(self, allocation: Allocation, for_model_id: str | None) -> None:
        self._end(allocation, Evict(allocation.model_id, for_model_id, allocation.busy))

    def replace(self, allocation: Allocation) -> None:
        self._end(
            allocation,
            Replace(allocation.model_id, allocation.footprint_bytes, allocation.limit_bytes),
        )

    def give_up(self, allocation: Allocation, seconds: float) -> None:
        """End a model whose worker hasn't answered a recall for so many seconds."""
        self._end(allocation, Unanswered(allocation.model_id, seconds))

    def refuse_sequence(self, allocation: Allocation, possible_bytes: int) -> None:
        needed_bytes = allocation.need.least_bytes
        self.decisions.append(RefuseSequence(allocation.model_id, needed_bytes, possible_bytes))

    def _end(self, allocation: Allocation, decision: Decision) -> None:
        allocation.ending = True
        self._untell(allocation)
        self.decisions.append(decision)

    def _set_limit(self, allocation: Allocation, limit_bytes: int, *, recall: bool) -> None:
        """Set a model's limit. Of several limits in one round only the last becomes a decision."""
        allocation.limit_bytes = limit_bytes
        self._untell(allocation)
        self.decisions.append(LimitChange(allocation.model_id, limit_bytes, recall))

    def _untell(self, allocation: Allocation) -> None:
        self.decisions = [
            decision
            for decision in self.decisions
            if not (isinstance(decision, LimitChange) and decision.model_id == allocation.model_id)
        ]
