"""What one model has reserved, what it was lent, and what it really holds.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
from msgspec import Struct

NEVER: Final = -math.inf


class MemoryNeed(Struct):
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


class Prompt(Struct):
    """One that the first sequence of a model computes, or has computed last. `in_turn`: it is what
    the model waited for.
    """

    number: int
    began_at: float
    in_turn: bool
    ended_at: float | None = None


class Allocation(Struct):
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
    need: MemoryNeed = msgspec.field(default_factory=MemoryNeed)
    pinned: bool = False
    reload_s: float = 0.0
    footprint_bytes: int = 0
    ready_at: float | None = None
    ending: bool = False
    busy: bool = True
    last_used: float = 0.0
    # Of its floor, what it held on to when it had given back what it could.
    stuck_bytes: int = 0
    # What its worker kept to when its footprint was read.
    read_at_bytes: int = 0
    # Since when its worker owes an answer, or its footprint what was answered; and what the worker
    # kept to then.
    recalled_at: float | None = None
    recalled_from_bytes: int = 0
    thirsty_since: float | None = None
    short_since: float | None = None
    placed_at: float = NEVER
    prompt: Prompt | None = None
    # It got what it waited for, and has begun nothing with it yet.
    turn_begins: bool = True
    overgrown_since: float | None = None
    # It was larger than its limit, and there was no room.
    outgrew_at: float = NEVER
    rebalanced_at: float = NEVER
    # Room is kept for it, whether it is loaded or not.
    reserved: bool = False
    # Of those that it is loaded with: whether one is busy, when one was used last, and since when
    # the last of them keeps its place; infinity: it loads.
    companions_busy: bool = False
    companions_used: float = NEVER
    companions_placed: float = NEVER

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
        """What was called back and isn't seen to be free yet: its word is awaited, or a reading
        since then. What it holds beyond any limit stays with it.
        """
        unread_bytes = min(self.footprint_bytes, self.read_at_bytes)
        return max(0, self.kept_bytes - self.limit_bytes, unread_bytes - self.limit_bytes)

    @property
    def going_bytes(self) -> int:
        """What its end would bring beside that."""
        return self.committed_bytes - self.coming_bytes

    @property
    def answered(self) -> bool:
        """Its worker keeps to what it was told."""
        return self.kept_bytes <= self.limit_bytes

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
    def idle(self) -> bool:
        """Nobody uses it, nor what it is loaded with."""
        return not self.busy and not self.companions_busy

    @property
    def own_place(self) -> float:
        """Since when it keeps its place; infinity: it loads."""
        if self.ready_at is None:
            return math.inf
        return max(self.ready_at, self.placed_at)

    @property
    def used_at(self) -> float:
        """When it was used last, or what it is loaded with."""
        return max(self.last_used, self.companions_used)

    @property
    def yields(self) -> bool:
        """It may be asked to go for another: what room is kept for would bring nothing."""
        return self.leaves and not self.reserved

    @property
    def leaves(self) -> bool:
        """It may be asked to go where there is less room than was thought, or for a rival."""
        return self.steady and not self.pinned
