"""The account of memory: what each model has reserved, what it was lent, and what it really holds.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Claim:
    """Memory that is waited for, since when, and how much the requests behind it matter.

    That of a model without a process is for its floor. That of a model that is loaded (`loan`) is
    for what its next sequence needs before anything can go on.
    """

    model_id: str
    needed_bytes: int
    priority: int
    since: float
    loan: bool = False
    pinned: bool = False


@dataclass
class Need:
    """What a worker says of itself, as limits of its process.

    `used_bytes` holds what runs now. With `wanted_bytes` everything that waits could run too. With
    less than `least_bytes` not even its first sequence can. So many are `held` for want of memory.
    `prompt` numbers the prompt that its first sequence is computing; 0 if it computes none. Its
    prompt cache has `cache_bytes` beside that, and could use `cache_wanted_bytes`.
    """

    used_bytes: int = 0
    wanted_bytes: int = 0
    least_bytes: int = 0
    held: int = 0
    prompt: int = 0
    cache_bytes: int = 0
    cache_wanted_bytes: int = 0


@dataclass
class Prompt:
    """One that the first sequence of a model computes, or has computed last. `in_turn`: it is what
    the model waited for.
    """

    number: int
    began_at: float
    in_turn: bool
    ended_at: float | None = None


@dataclass
class Holder:
    """A model whose process has memory, or is about to take it.

    Its limit is its floor and what it was lent. `kept_bytes` is the limit that the worker last said
    it keeps to: until it has answered a recall it may still use that.
    """

    model_id: str
    priority: int
    claimed_at: float
    floor_bytes: int
    limit_bytes: int
    kept_bytes: int
    need: Need = field(default_factory=Need)
    pinned: bool = False
    reload_s: float = 0.0
    footprint_bytes: int = 0
    ready_at: float | None = None
    ending: bool = False
    busy: bool = True
    last_used: float = 0.0
    recalled_at: float | None = None
    thirsty_since: float | None = None
    short_since: float | None = None
    placed_at: float = float("-inf")
    prompt: Prompt | None = None
    # It got what it waited for, and has begun nothing with it yet.
    turn_begins: bool = True
    overgrown_since: float | None = None
    # It was larger than its limit, and there was no room.
    outgrew_at: float = float("-inf")
    rebalanced_at: float = float("-inf")

    @property
    def lent_bytes(self) -> int:
        return self.limit_bytes - self.floor_bytes

    @property
    def committed_bytes(self) -> int:
        """What can't be given to anybody else: a fresh worker reads its weights later, and what was
        recalled is free only when the footprint shows it.
        """
        return max(self.limit_bytes, self.kept_bytes, self.footprint_bytes)

    @property
    def coming_bytes(self) -> int:
        """Of that, what is on its way back."""
        return self.committed_bytes if self.ending else self.returning_bytes

    @property
    def returning_bytes(self) -> int:
        """What was called back and isn't seen to be free yet."""
        return 0 if self.recalled_at is None else self.committed_bytes - self.limit_bytes

    @property
    def going_bytes(self) -> int:
        """What its end would bring beside that."""
        return self.committed_bytes - self.coming_bytes

    @property
    def loose_bytes(self) -> int:
        """What it was lent and neither what runs nor its next sequence needs."""
        needed_bytes = max(self.need.used_bytes, self.need.least_bytes)
        return max(0, self.limit_bytes - max(self.floor_bytes, needed_bytes))

    @property
    def idle_loan_bytes(self) -> int:
        """Of that, what its prompt cache doesn't need either."""
        return max(0, self.loose_bytes - self.need.cache_bytes)

    @property
    def rows_bytes(self) -> int:
        """What it was lent and could give back without coming to a stop."""
        return max(0, self.limit_bytes - max(self.floor_bytes, self.need.least_bytes))

    @property
    def short(self) -> bool:
        """Requests wait in it for memory."""
        return self.need.held > 0 and self.need.wanted_bytes > self.limit_bytes

    @property
    def steady(self) -> bool:
        """It is loaded and stays: it can borrow, and give back."""
        return self.ready_at is not None and not self.ending

    @property
    def yields(self) -> bool:
        """It may be asked to go."""
        return self.steady and not self.pinned


class Ledger:
    """Every holder, and what is left of the budget beside them."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.stranded_bytes = 0
        # Of that, what may still come back.
        self.undecided_bytes = 0
        # For workers without a model.
        self.spare_bytes = 0
        self._holders: dict[str, Holder] = {}

    @property
    def holders(self) -> Iterable[Holder]:
        return self._holders.values()

    @property
    def steady(self) -> list[Holder]:
        return [each for each in self._holders.values() if each.steady]

    @property
    def committed_bytes(self) -> int:
        held = sum(each.committed_bytes for each in self._holders.values())
        return held + self.spare_bytes

    @property
    def coming_bytes(self) -> int:
        """What is on its way back, of models that end and of loans that were recalled."""
        return sum(each.coming_bytes for each in self._holders.values())

    @property
    def usable_bytes(self) -> int:
        """The budget less what no process holds and nobody can give back."""
        return max(0, self.budget_bytes - self.stranded_bytes)

    @property
    def free_bytes(self) -> int:
        return self.usable_bytes - self.committed_bytes

    @property
    def possible_bytes(self) -> int:
        """What a model could get at best: pinned ones stay, and keep their floors."""
        return self.usable_bytes - sum(map(_staying_bytes, self._holders.values()))

    def possible_for(self, holder: Holder) -> int:
        """The same for one of the holders, whose own floor is no obstacle."""
        return self.possible_bytes + _staying_bytes(holder)

    def floor_bytes(self, model_ids: Iterable[str]) -> int:
        """What these keep as long as they are loaded; of those that aren't, nothing."""
        holders = map(self._holders.get, model_ids)
        return sum(each.floor_bytes for each in holders if each is not None and not each.ending)

    def holder(self, model_id: str) -> Holder | None:
        return self._holders.get(model_id)

    def enter(self, claim: Claim) -> None:
        """Reserve a floor. The process may take it from now on."""
        floor_bytes = claim.needed_bytes
        self._holders[claim.model_id] = Holder(
            claim.model_id,
            claim.priority,
            claim.since,
            floor_bytes,
            limit_bytes=floor_bytes,
            kept_bytes=floor_bytes,
            pinned=claim.pinned,
        )

    def remove(self, model_id: str) -> Holder | None:
        """Its process has ended: what it held is free."""
        return self._holders.pop(model_id, None)


def _staying_bytes(holder: Holder) -> int:
    """What of it can't be had for others, whatever is called back."""
    return holder.floor_bytes if holder.pinned and not holder.ending else 0
