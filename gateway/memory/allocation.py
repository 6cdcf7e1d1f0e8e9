"""The memory of one model: its reserved floor, its loan, and the bytes that it really holds.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
from msgspec import Struct

NEVER: Final = -math.inf


class MemoryNeed(Struct):
    """The memory that a worker says it could use, as limits of its process.

    A limit of `used_bytes` is enough for the sequences that run, and `wanted_bytes` also for those
    that wait. With less than `least_bytes` not even the first sequence can run. `held` sequences
    wait for memory. `prompt` numbers the prompt that the first sequence is computing; 0: it
    computes none. Beside these limits, the prompt cache has `cache_bytes`, and could use
    `cache_wanted_bytes`.
    """

    used_bytes: int = 0
    wanted_bytes: int = 0
    least_bytes: int = 0
    held: int = 0
    prompt: int = 0
    cache_bytes: int = 0
    cache_wanted_bytes: int = 0


class WorkerReading(Struct, frozen=True):
    """A reading of a worker's processes, in bytes. It began while the worker kept to a limit of
    `limit_bytes`. `unsent_bytes` is the change of the bytes beside MLX's account since their number
    was last sent to the worker; 0: the change is noise.
    """

    footprint_bytes: int
    peak_bytes: int
    limit_bytes: int
    unsent_bytes: int = 0


class Prompt(Struct):
    """The prompt that a model's first sequence computes, or has computed last. `in_turn`: the model
    has got memory that it waited for, and this is its first prompt since.
    """

    number: int
    began_at: float
    in_turn: bool
    ended_at: float | None = None


class Allocation(Struct):
    """The memory of a model whose process has memory, or is about to take it.

    The limit is the sum of floor and loan. `obeyed_bytes` is the limit of the worker's last answer.
    Until the worker answers a recall, it may still use these bytes. Companions are other models of
    a group that are loaded together with this one.
    """

    model_id: str
    priority: int
    claimed_at: float
    floor_bytes: int
    limit_bytes: int
    obeyed_bytes: int
    need: MemoryNeed = msgspec.field(default_factory=MemoryNeed)
    pinned: bool = False
    reload_s: float = 0.0
    footprint_bytes: int = 0
    ready_at: float | None = None
    ending: bool = False
    busy: bool = True
    last_used: float = 0.0
    # The part of the floor that was lent, and that the worker could not give back at a recall.
    stuck_bytes: int = 0
    # The limit that the worker kept to when `footprint_bytes` was read.
    read_at_bytes: int = 0
    # Since when a recall is open: the worker hasn't answered it, or no reading shows the answer
    # yet. And the limit that the worker kept to at that time.
    recalled_at: float | None = None
    recalled_from_bytes: int = 0
    starved_since: float | None = None
    short_since: float | None = None
    # Since when the next sequence needs more than the model can ever get.
    hopeless_since: float | None = None
    protected_at: float = NEVER
    prompt: Prompt | None = None
    # The model got memory that it waited for, and has begun no prompt since.
    turn_begins: bool = True
    overgrown_since: float | None = None
    # When the footprint was last above the limit while the budget had no room for that.
    outgrew_at: float = NEVER
    rebalanced_at: float = NEVER
    # A group keeps room for the model, whether the model is loaded or not.
    reserved: bool = False
    # Whether a companion is busy or asks for memory, when a companion was used last, and the latest
    # `protection_start` of the companions.
    companions_busy: bool = False
    companions_used: float = NEVER
    companions_protected_at: float = NEVER

    def record(self, reading: WorkerReading) -> None:
        """Record a reading. Its `unsent_bytes` are added to the worker's last need, until the
        worker sends its next need. The need of an idle worker stays 0.
        """
        self.footprint_bytes = reading.footprint_bytes
        self.read_at_bytes = reading.limit_bytes
        if self.need.wanted_bytes:
            self.need.used_bytes = max(0, self.need.used_bytes + reading.unsent_bytes)
            self.need.wanted_bytes = max(0, self.need.wanted_bytes + reading.unsent_bytes)
            self.need.least_bytes = max(0, self.need.least_bytes + reading.unsent_bytes)

    @property
    def lent_bytes(self) -> int:
        return self.limit_bytes - self.floor_bytes

    @property
    def committed_bytes(self) -> int:
        """Bytes that no other model can have. The whole limit counts, as a new worker reads its
        weights later. A recalled loan counts until the footprint shows that it is free.
        """
        return max(self.limit_bytes, self.obeyed_bytes, self.footprint_bytes)

    @property
    def coming_bytes(self) -> int:
        """The part of `committed_bytes` that is being freed."""
        return self.committed_bytes if self.ending else self.returning_bytes

    @property
    def returning_bytes(self) -> int:
        """Bytes that were called back and aren't known to be free yet: the worker hasn't answered,
        or no reading has begun since its answer. Bytes beyond the worker's earlier limit don't
        count.
        """
        unread_bytes = min(self.footprint_bytes, self.read_at_bytes)
        return max(0, self.obeyed_bytes - self.limit_bytes, unread_bytes - self.limit_bytes)

    @property
    def outgrown_bytes(self) -> int:
        """The part of the limit that a recall doesn't bring back: what the worker holds beyond the
        limit that it keeps to.
        """
        unread_bytes = min(self.footprint_bytes, self.read_at_bytes)
        held_bytes = min(self.limit_bytes, self.footprint_bytes)
        return max(0, held_bytes - max(self.obeyed_bytes, unread_bytes))

    @property
    def freed_by_end_bytes(self) -> int:
        """Bytes that the model's end would free, beside those that are being freed already."""
        return self.committed_bytes - self.coming_bytes

    @property
    def answered(self) -> bool:
        """Whether the worker has reported that it keeps to the present limit."""
        return self.obeyed_bytes <= self.limit_bytes

    @property
    def unneeded_loan_bytes(self) -> int:
        """The part of the loan that neither the running sequences nor the next sequence need."""
        needed_bytes = max(self.need.used_bytes, self.need.least_bytes)
        return max(0, self.limit_bytes - max(self.floor_bytes, needed_bytes))

    @property
    def idle_loan_bytes(self) -> int:
        """The part of `unneeded_loan_bytes` that the prompt cache doesn't need either."""
        return max(0, self.unneeded_loan_bytes - self.need.cache_bytes)

    @property
    def rows_bytes(self) -> int:
        """The part of the loan that the model could give back and still run one sequence."""
        return max(0, self.limit_bytes - max(self.floor_bytes, self.need.least_bytes))

    @property
    def short(self) -> bool:
        """Whether requests wait for memory in the model's worker."""
        return self.need.held > 0 and self.need.wanted_bytes > self.limit_bytes

    @property
    def steady(self) -> bool:
        """Whether the model is loaded and isn't ending: it can borrow, and give back."""
        return self.ready_at is not None and not self.ending

    @property
    def idle(self) -> bool:
        """Whether neither this model nor a companion is busy."""
        return not self.busy and not self.companions_busy

    @property
    def protection_start(self) -> float:
        """When the model was loaded, or was last protected from being displaced for a claim of its
        own. Infinity: it is loading.
        """
        if self.ready_at is None:
            return math.inf
        return max(self.ready_at, self.protected_at)

    @property
    def used_at(self) -> float:
        """When this model or a companion was used last."""
        return max(self.last_used, self.companions_used)

    @property
    def evictable_for_any(self) -> bool:
        """Whether the model may be evicted for any other model. A reserved model may not, since no
        other model would get its room.
        """
        return self.evictable and not self.reserved

    @property
    def evictable(self) -> bool:
        """Whether the model may be evicted because memory is short, or for a rival."""
        return self.steady and not self.pinned
