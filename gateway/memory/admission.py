"""Which models may hold memory: an account of what is granted, and who gets it next.

No I/O and no clock here; `gateway.memory.steward` feeds it and does what it decides. Times are
seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec import Struct


@dataclass
class Claim:
    """A model that waits for memory, since when, and how much its requests matter."""

    model_id: str
    needed_bytes: int
    priority: int
    since: float


@dataclass
class Holder:
    """A model whose process has memory, or is about to take it."""

    model_id: str
    granted_bytes: int
    priority: int
    pinned: bool
    reload_s: float = 0.0
    footprint_bytes: int = 0
    ready_at: float | None = None
    ending: bool = False
    busy: bool = False
    last_used: float = 0.0

    @property
    def committed_bytes(self) -> int:
        """A fresh worker reads its weights later: what it was granted counts from the start."""
        return max(self.granted_bytes, self.footprint_bytes)


class Admit(Struct, frozen=True):
    """It may start; the bytes are reserved."""

    model_id: str
    granted_bytes: int


class Evict(Struct, frozen=True):
    """It has to go for another; nothing is free until it is gone."""

    model_id: str
    for_model_id: str
    busy: bool


class Refuse(Struct, frozen=True):
    """It can't be admitted whatever is evicted."""

    model_id: str
    needed_bytes: int
    possible_bytes: int


# A busy model keeps its place for this part of the patience, and as long as its load took: two that
# displace each other would otherwise do nothing but load.
_SLICE: Final = 0.25

Decision: TypeAlias = Admit | Evict | Refuse


class Admission:
    """The ledger, and the decisions that keep it within the budget.

    The sum of what is committed never passes the budget by an admission. Whoever waits gets
    memory in the order of priority, then of time; but those that have waited for `patience_s` come
    first, and only they, or a higher priority, may displace a model that is busy. Memory that is
    becoming free for one isn't given to another behind it; while one waits for busy models, others
    that fit may pass.
    """

    def __init__(self, budget_bytes: int, patience_s: float, spare_bytes: int = 0) -> None:
        """`spare_bytes` is what workers without a model shall hold, if there is room for them."""
        self.budget_bytes = budget_bytes
        self.stranded_bytes = 0
        self.spare_bytes = 0
        self._wanted_spare_bytes = spare_bytes
        self._patience_s = patience_s
        self._claims: dict[str, Claim] = {}
        self._holders: dict[str, Holder] = {}

    # What others ask

    @property
    def claims(self) -> Iterable[Claim]:
        return self._claims.values()

    @property
    def holders(self) -> Iterable[Holder]:
        return self._holders.values()

    @property
    def committed_bytes(self) -> int:
        held = sum(each.committed_bytes for each in self._holders.values())
        return held + self.spare_bytes

    @property
    def usable_bytes(self) -> int:
        """The budget less what no process holds and nobody can give back."""
        return max(0, self.budget_bytes - self.stranded_bytes)

    @property
    def free_bytes(self) -> int:
        return self.usable_bytes - self.committed_bytes

    def holder(self, model_id: str) -> Holder | None:
        return self._holders.get(model_id)

    # What happens

    def ask(self, model_id: str, needed_bytes: int, priority: int, now: float) -> None:
        """A model wants to be loaded. Asking again changes its priority and not its turn."""
        if model_id in self._holders:
            raise ValueError(f"{model_id} holds memory already")
        claim = self._claims.setdefault(
            model_id, Claim(model_id, needed_bytes, priority, since=now)
        )
        claim.needed_bytes = needed_bytes
        claim.priority = priority

    def withdraw(self, model_id: str) -> None:
        """It doesn't want to be loaded any more."""
        self._claims.pop(model_id, None)

    def note(self, model_id: str, *, priority: int, busy: bool, last_used: float) -> None:
        """How much a model matters at present."""
        if (claim := self._claims.get(model_id)) is not None:
            claim.priority = priority
        if (holder := self._holders.get(model_id)) is not None:
            holder.priority = priority
            holder.busy = busy
            holder.last_used = last_used

    def note_footprint(self, model_id: str, footprint_bytes: int) -> None:
        if (holder := self._holders.get(model_id)) is not None:
            holder.footprint_bytes = footprint_bytes

    def ready(
        self, model_id: str, now: float, *, pinned: bool = False, reload_s: float = 0.0
    ) -> None:
        """It is loaded, so it may be asked to go unless it is pinned."""
        holder = self._holders[model_id]
        holder.ready_at = now
        holder.pinned = pinned
        holder.reload_s = reload_s

    def pin(self, model_id: str, *, pinned: bool) -> None:
        """Whether a model that is loaded may be asked to go."""
        if (holder := self._holders.get(model_id)) is not None:
            holder.pinned = pinned and holder.ready_at is not None

    def ending(self, model_id: str) -> None:
        """Its process is on its way out."""
        if (holder := self._holders.get(model_id)) is not None:
            holder.ending = True

    def gone(self, model_id: str) -> None:
        """Its process has ended: what it held is free."""
        self._holders.pop(model_id, None)

    # Decisions

    def decide(self, now: float) -> list[Decision]:
        """What follows from all that; to be called after each change, and as time passes.

        What it decides is entered into the account at once, so no two decisions use the same
        bytes.
        """
        decisions: list[Decision] = []
        self._decide_on_spare()
        unclaimed_bytes = self.free_bytes
        coming_bytes = sum(e.committed_bytes for e in self._holders.values() if e.ending)
        for claim in self._in_turn(now):
            if claim.needed_bytes > (possible := self.possible_bytes):
                del self._claims[claim.model_id]
                decisions.append(Refuse(claim.model_id, claim.needed_bytes, possible))
                continue
            if claim.needed_bytes <= unclaimed_bytes:
                decisions.append(self._admit(claim))
                unclaimed_bytes -= claim.needed_bytes
                continue
            if self.spare_bytes:
                # A load adopts the spare, or needs its room more.
                unclaimed_bytes += self.spare_bytes
                self.spare_bytes = 0
                if claim.needed_bytes <= unclaimed_bytes:
                    decisions.append(self._admit(claim))
                    unclaimed_bytes -= claim.needed_bytes
                    continue
            missing_bytes = claim.needed_bytes - max(unclaimed_bytes, 0) - max(coming_bytes, 0)
            if missing_bytes > 0:
                victims = self._victims(claim, missing_bytes, now)
                if not victims and not self._overdue(claim, now):
                    continue  # Busy models are in its way. Others may pass until its turn.
                for victim in victims:
                    victim.ending = True
                    coming_bytes += victim.committed_bytes
                    decisions.append(Evict(victim.model_id, claim.model_id, victim.busy))
            # It waits, and what is free or coming is its own.
            taken_bytes = min(max(unclaimed_bytes, 0), claim.needed_bytes)
            coming_bytes -= claim.needed_bytes - taken_bytes
            unclaimed_bytes -= claim.needed_bytes
        return decisions

    def configure(self, budget_bytes: int, patience_s: float, spare_bytes: int) -> None:
        """Other limits from now on; what models were granted stays so until `shrink`."""
        self.budget_bytes = budget_bytes
        self._patience_s = patience_s
        self._wanted_spare_bytes = spare_bytes
        self._decide_on_spare()

    def shrink(self) -> list[str]:
        """Who goes because more is committed than may be: as few as it takes, idle ones first.
        Pinned models and those that are loading stay.
        """
        ending_bytes = sum(e.committed_bytes for e in self._holders.values() if e.ending)
        candidates = [
            each
            for each in self._holders.values()
            if not (each.pinned or each.ending or each.ready_at is None)
        ]
        going = _smallest_set(candidates, -self.free_bytes - ending_bytes)
        for each in going:
            each.ending = True
        return [each.model_id for each in going]

    def relieve(self, *, all_idle: bool) -> list[str]:
        """Who goes because the whole machine is short of memory: the idle model that is least
        missed, or every idle one.
        """
        idle = [
            each
            for each in self._holders.values()
            if not (each.busy or each.pinned or each.ending or each.ready_at is None)
        ]
        idle.sort(key=_worth)
        going = idle if all_idle else idle[:1]
        for each in going:
            each.ending = True
        return [each.model_id for each in going]

    def _decide_on_spare(self) -> None:
        """The spare has what nobody else needs."""
        if self.spare_bytes > self._wanted_spare_bytes or self.free_bytes < 0:
            self.spare_bytes = 0
        more_bytes = self._wanted_spare_bytes - self.spare_bytes
        if not self._claims and 0 < more_bytes <= self.free_bytes:
            self.spare_bytes = self._wanted_spare_bytes

    def _admit(self, claim: Claim) -> Admit:
        del self._claims[claim.model_id]
        self._holders[claim.model_id] = Holder(
            claim.model_id, claim.needed_bytes, claim.priority, pinned=False, busy=True
        )
        return Admit(claim.model_id, claim.needed_bytes)

    def _in_turn(self, now: float) -> list[Claim]:
        def turn(claim: Claim) -> tuple[bool, int, float]:
            overdue = self._overdue(claim, now)
            return (not overdue, 0 if overdue else -claim.priority, claim.since)

        return sorted(self._claims.values(), key=turn)

    def _overdue(self, claim: Claim, now: float) -> bool:
        return now - claim.since >= self._patience_s

    @property
    def possible_bytes(self) -> int:
        """What a model could get at best."""
        staying = sum(
            each.committed_bytes
            for each in self._holders.values()
            if each.pinned and not each.ending
        )
        return self.usable_bytes - staying

    def _victims(self, claim: Claim, missing_bytes: int, now: float) -> list[Holder]:
        """Who goes for a claim; nobody if that would not be enough."""
        candidates = [e for e in self._holders.values() if self._may_displace(claim, e, now)]
        if sum(each.committed_bytes for each in candidates) < missing_bytes:
            return []
        return _smallest_set(candidates, missing_bytes)

    def _may_displace(self, claim: Claim, holder: Holder, now: float) -> bool:
        if holder.pinned or holder.ending or holder.ready_at is None:
            return False
        if not holder.busy:
            return True
        if now - holder.ready_at < max(self._patience_s * _SLICE, holder.reload_s):
            return False
        return claim.priority > holder.priority or self._overdue(claim, now)


def _worth(holder: Holder) -> tuple[int, float, float]:
    return (holder.priority, holder.last_used, holder.reload_s)


def _smallest_set(candidates: list[Holder], missing_bytes: int) -> list[Holder]:
    """The smallest set that gives so many bytes, idle ones first; all if they don't."""
    chosen: list[Holder] = []
    chosen_bytes = 0
    for holder in sorted(candidates, key=lambda each: (each.busy, *_worth(each))):
        if chosen_bytes >= missing_bytes:
            break
        chosen.append(holder)
        chosen_bytes += holder.committed_bytes
    # The last ones may have been large enough to spare some of the first; busy ones foremost.
    for holder in sorted(chosen, key=lambda each: (not each.busy, -each.priority)):
        if chosen_bytes - holder.committed_bytes >= missing_bytes:
            chosen.remove(holder)
            chosen_bytes -= holder.committed_bytes
    return chosen
