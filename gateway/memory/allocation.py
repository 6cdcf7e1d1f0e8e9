"""The memory of one model: what is reserved for it, what it was lent, and what it really holds.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
from msgspec import Struct

NEVER: Final = -math.inf


class MemoryNeed(Struct):
    """The limits that a worker says its process could do with.

    `used_bytes` are enough for the sequences that run now, `wanted_bytes` also for those that wait.
    With less than `least_bytes` not even the first sequence can run. `held` sequences wait for
    memory. `prompt` numbers the prompt that the first sequence is computing; 0: it computes none.
    The prompt cache has `cache_bytes` beside that, and could use `cache_wanted_bytes`.
    """

    used_bytes: int = 0
    wanted_bytes: int = 0
    least_bytes: int = 0
    held: int = 0
    prompt: int = 0
    cache_bytes: int = 0
    cache_wanted_bytes: int = 0


class Prompt(Struct):
    """The prompt that a model's first sequence computes, or has computed last. `in_turn`: for this
    one the model waited for memory.
    """

    number: int
    began_at: float
    in_turn: bool
    ended_at: float | None = None


class Allocation(Struct):
    """A model whose process has memory, or is about to take it.

    Its limit is its floor and its loan. `kept_bytes` is the limit that the worker last said it
    keeps to: until it has answered a recall it may still use that.
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
    # The part of its floor that it could not give back when it was asked.
    stuck_bytes: int = 0
    # The limit that its worker kept to when its footprint was read.
    read_at_bytes: int = 0
    # Since when an answer to a recall is missing, or a footprint that shows the answer; and the
    # limit that the worker kept to then.
    recalled_at: float | None = None
    recalled_from_bytes: int = 0
    thirsty_since: float | None = None
    short_since: float | None = None
    placed_at: float = NEVER
    prompt: Prompt | None = None
    # It got the memory that it waited for, and has begun no prompt since.
    turn_begins: bool = True
    overgrown_since: float | None = None
    # When it was last larger than its limit while the budget had no room.
    outgrew_at: float = NEVER
    rebalanced_at: float = NEVER
    # Room is kept for it, whether it is loaded or not.
    reserved: bool = False
    # Of the models that it is loaded with: whether one is busy, when one was used last, and since
    # when the last of them keeps its place; infinity: that one is loading.
    companions_busy: bool = False
    companions_used: float = NEVER
    companions_placed: float = NEVER

    @property
    def lent_bytes(self) -> int:
        return self.limit_bytes - self.floor_bytes

    @property
    def committed_bytes(self) -> int:
        """Bytes that no other model can have: a fresh worker reads its weights later, and a loan
        that was recalled is free only when the footprint shows it.
        """
        return max(self.limit_bytes, self.kept_bytes, self.footprint_bytes)

    @property
    def coming_bytes(self) -> int:
        """The part of that which is being freed."""
        return self.committed_bytes if self.ending else self.returning_bytes

    @property
    def returning_bytes(self) -> int:
        """Bytes that were called back and aren't seen to be free yet: the worker's answer is
        missing, or a reading since. Bytes beyond any limit that it had are not among them.
        """
        unread_bytes = min(self.footprint_bytes, self.read_at_bytes)
        return max(0, self.kept_bytes - self.limit_bytes, unread_bytes - self.limit_bytes)

    @property
    def going_bytes(self) -> int:
        """Bytes that its end would free, beside those that are being freed already."""
        return self.committed_bytes - self.coming_bytes

    @property
    def answered(self) -> bool:
        """Its worker keeps to the limit that it was told."""
        return self.kept_bytes <= self.limit_bytes

    @property
    def loose_bytes(self) -> int:
        """The part of its loan that neither its running sequences nor its next one need."""
        needed_bytes = max(self.need.used_bytes, self.need.least_bytes)
        return max(0, self.limit_bytes - max(self.floor_bytes, needed_bytes))

    @property
    def idle_loan_bytes(self) -> int:
        """The part of that which its prompt cache doesn't need either."""
        return max(0, self.loose_bytes - self.need.cache_bytes)

    @property
    def rows_bytes(self) -> int:
        """The part of its loan that it could give back without coming to a stop."""
        return max(0, self.limit_bytes - max(self.floor_bytes, self.need.least_bytes))

    @property
    def short(self) -> bool:
        """Requests wait for memory in its worker."""
        return self.need.held > 0 and self.need.wanted_bytes > self.limit_bytes

    @property
    def steady(self) -> bool:
        """It is loaded and stays: it can borrow, and give back."""
        return self.ready_at is not None and not self.ending

    @property
    def idle(self) -> bool:
        """No request uses it, or a model that it is loaded with."""
        return not self.busy and not self.companions_busy

    @property
    def own_place(self) -> float:
        """Since when it keeps its place; infinity: it is loading."""
        if self.ready_at is None:
            return math.inf
        return max(self.ready_at, self.placed_at)

    @property
    def used_at(self) -> float:
        """When it was used last, or a model that it is loaded with."""
        return max(self.last_used, self.companions_used)

    @property
    def yields(self) -> bool:
        """It may be evicted for another model: the room of a reserved one would be kept anyway."""
        return self.leaves and not self.reserved

    @property
    def leaves(self) -> bool:
        """It may be evicted where the budget has too little room, or for a rival."""
        return self.steady and not self.pinned
