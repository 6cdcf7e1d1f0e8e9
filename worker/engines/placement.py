"""Which batch a waiting sequence joins, by the padding that this costs and by the memory limit. No
computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from worker.engines.room import BatchSize, CacheRoom
from worker.engines.row_batch import RowBatch
from worker.mlx_lm.row_groups import Grouping, GroupSize

# Batches take turns, and each turn reads all weights, so more batches are slower.
_MOST_BATCHES: Final = 4


class Placement:
    """The places of sequences that are looked at between two steps, one after another. The rows of
    all batches are counted once, in advance: a look at each row for each sequence took longer than
    the steps of a small model.
    """

    def __init__(
        self, room: CacheRoom, grouping: Grouping, batches: Iterable[RowBatch], worth_bytes: int
    ) -> None:
        """Each step may read `worth_bytes` of padding before another batch is faster."""
        self._room = room
        self._grouping = grouping
        self._worth_bytes = worth_bytes
        self._groups = {batch: batch.group_sizes() for batch in batches}
        # The lengths of the sequences for which room in a batch is left free.
        self._later: dict[RowBatch, list[int]] = {batch: [] for batch in self._groups}
        self._reserved = dict(self._groups)

    @property
    def sizes(self) -> list[BatchSize]:
        """The sizes of all batches."""
        return _flat(self._groups.values())

    def joined(self, batch: RowBatch, tokens: int) -> list[BatchSize]:
        """The same once a sequence of `tokens` tokens has joined `batch`."""
        groups = {**self._groups, batch: self._grouping.placed(self._groups[batch], tokens)}
        return _flat(groups.values())

    def best(self, tokens: int) -> RowBatch | None:
        """The batch that a sequence of `tokens` tokens should join beside those for which room is
        left; None: none of the present ones.
        """
        fitting = [
            (self._padding_bytes(batch, tokens), number, batch)
            for number, batch in enumerate(self._groups)
            if self._fits(batch, tokens)
        ]
        least_bytes, _, best = min(fitting, default=(0, 0, None))
        if best is None:
            return None
        pays = least_bytes <= self._worth_bytes and not best.prefills_beyond(tokens)
        return best if pays or not self.may_open(tokens) else None

    def may_open(self, tokens: int) -> bool:
        """Whether a sequence may begin another batch."""
        alone = [*_flat(self._reserved.values()), BatchSize(1, tokens)]
        return len(self._groups) < _MOST_BATCHES and self._room.holds(alone)

    def has_room(self, tokens: int) -> bool:
        """Whether a sequence fits one of the batches, or another one."""
        return any(self._fits(batch, tokens) for batch in self._groups) or self.may_open(tokens)

    def open(self, batch: RowBatch) -> None:
        """Add a new batch, which is empty."""
        self._groups[batch] = self._reserved[batch] = []
        self._later[batch] = []

    def join(self, batch: RowBatch, tokens: int) -> None:
        """Note that a sequence of `tokens` tokens has joined `batch`."""
        self._groups[batch] = self._grouping.placed(self._groups[batch], tokens)
        self._reserved[batch] = self._groups[batch]
        for length in self._later[batch]:
            self._reserved[batch] = self._grouping.placed(self._reserved[batch], length)

    def leave_room(self, batch: RowBatch, tokens: int) -> None:
        """Leave room in `batch` for a sequence that joins later."""
        self._later[batch].append(tokens)
        self._reserved[batch] = self._grouping.placed(self._reserved[batch], tokens)

    def _fits(self, batch: RowBatch, tokens: int) -> bool:
        groups = {**self._reserved, batch: self._grouping.placed(self._reserved[batch], tokens)}
        return self._room.holds(_flat(groups.values()))

    def _padding_bytes(self, batch: RowBatch, tokens: int) -> int:
        """The bytes of padding that each step would read in addition if a sequence of `tokens`
        tokens joined `batch`.
        """
        shape, groups = self._room.shape, self._groups[batch]
        now, together = (
            sum(shape.batch_bytes(*size) for size in _flat([sizes]))
            for sizes in (groups, self._grouping.placed(groups, tokens))
        )
        return together - now - shape.batch_bytes(1, tokens)


def _flat(batches: Iterable[Sequence[GroupSize]]) -> list[BatchSize]:
    return [BatchSize(group.places, group.longest_tokens) for groups in batches for group in groups]
