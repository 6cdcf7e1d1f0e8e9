"""Groups of rows of similar length in one batch: who joins which group, and the places of rows in
the arrays of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

import mlx.core as mx

from worker.mlx_lm.caches import leaves_of
from worker.mlx_lm.grouped_attention import joined
from worker.mlx_lm.row_caches import RowsCache, changed, reserve

# A group has places for at most such a share of rows more than it has.
_SPARE: Final = 8
_UNBOUNDED: Final = 1 << 30


class GroupSize(NamedTuple):
    """The rows of a group, the places that its arrays have for rows, and the tokens of its longest
    row.
    """

    rows: int
    places: int
    longest_tokens: int

    def with_row(self, tokens: int) -> GroupSize:
        rows = self.rows + 1
        places = self.places if rows <= self.places else places_for(rows)
        return GroupSize(rows, places, max(self.longest_tokens, tokens))


def places_for(rows: int) -> int:
    """The places of a group that grows to so many rows. The next rows find room in these."""
    step = max(1, (1 << rows.bit_length() - 1) // _SPARE)
    return -(-rows // step) * step


class Grouping(NamedTuple):
    """A batch has at most `most_groups` groups. A group costs as much as `padding_tokens` tokens of
    padding.
    """

    most_groups: int = 1
    padding_tokens: int = 0

    def place(self, groups: Sequence[GroupSize], tokens: int) -> int:
        """The number of the group for a row of so many tokens: the one with the least padding in
        addition, or a new one after all others.
        """
        padding = [
            group.longest_tokens - tokens
            if tokens <= group.longest_tokens
            else group.rows * (tokens - group.longest_tokens)
            for group in groups
        ]
        least = min(padding, default=_UNBOUNDED)
        if groups and (least <= self.padding_tokens or len(groups) >= self.most_groups):
            return padding.index(least)
        return len(groups)

    def placed(self, groups: Sequence[GroupSize], tokens: int) -> list[GroupSize]:
        """The sizes of the groups once such a row has joined."""
        place = self.place(groups, tokens)
        group = groups[place] if place < len(groups) else GroupSize(0, 0, 0)
        return [*groups[:place], group.with_row(tokens), *groups[place + 1 :]]


ONE_GROUP: Final = Grouping()


class RowGroup:
    """Rows whose caches are padded to the longest of them. `caches` are those of the layers: caches
    of rows are the group's own, and those of other kinds are shared by all groups of a batch.
    """

    def __init__(self, caches: list[Any], rows: int) -> None:
        self.caches = caches
        self.leaves = [leaf for leaf in leaves_of(caches) if isinstance(leaf, RowsCache)]
        # The lengths that caches share: one for each window.
        self.lengths = list({id(cache.lengths): cache.lengths for cache in self.leaves}.values())
        # The place of each row in the arrays. A row that moves does so with the next step.
        self.places = list(range(rows))
        # The places that the arrays have once the rows have moved.
        self._room = self.leaves[0].places if self.leaves else rows

    def __len__(self) -> int:
        return len(self.places)

    @property
    def tokens(self) -> list[int]:
        """The tokens of each row; zeros if no cache tells."""
        return self.lengths[0].tokens if self.lengths else [0] * len(self)

    @property
    def size(self) -> GroupSize:
        return GroupSize(len(self), self._room, max(self.tokens))

    @property
    def free_slots(self) -> int:
        """The tokens a row for which the caches needn't grow."""
        free = [leaf.keys.shape[2] - leaf.lengths.most_slots for leaf in self.leaves]
        return min(free, default=_UNBOUNDED)

    def reserve(self, width: int) -> None:
        """Make room for `width` tokens more of each row."""
        for lengths in self.lengths:
            reserve([leaf for leaf in self.leaves if leaf.lengths is lengths], width)

    def advance(self, tokens: Sequence[int]) -> None:
        """Note how many tokens more of each row the caches have seen."""
        for lengths in self.lengths:
            lengths.set(
                [before + more for before, more in zip(lengths.tokens, tokens, strict=True)]
            )

    def add_rows(self, other: RowGroup, rows: Sequence[int]) -> None:
        """Put these rows of another group behind the own rows. No row of both is about to move, and
        no step is being computed: only then MLX writes into the same memory.
        """
        count = len(self) + len(rows)
        if count > self._room:
            self._room = places_for(count)
        for leaf, new_leaf in zip(self.leaves, other.leaves, strict=True):
            shape = leaf.keys.shape
            leaf.add_rows(new_leaf, rows, self._room)
            if leaf.keys.shape != shape:
                # One after another: else MLX would hold the old arrays of several layers.
                mx.eval(leaf.state)
        for lengths, more in zip(self.lengths, other.lengths, strict=True):
            lengths.extend(more.of(rows))
        self.places = list(range(count))

    def part(self, rows: Sequence[int], shared: Iterator[Any]) -> RowGroup:
        """A new group with these rows, and caches that it shares with its batch. The rows are
        copied unless they are all.
        """
        lengths = {id(length): length.of(rows) for length in self.lengths}
        whole = list(rows) == list(range(len(self)))

        def of_layer(cache: Any) -> Any:
            if not isinstance(cache, RowsCache):
                return next(shared)
            if whole:
                return cache
            part = cache.part(rows, lengths[id(cache.lengths)])
            mx.eval(part.state)
            return part

        return RowGroup(changed(of_layer, self.caches), len(rows))

    def retain(self, keep: Sequence[int]) -> list[int]:
        """Retain only these rows, at least one. Returns the new order of the rows, by their old
        numbers. Nothing is copied before `move_rows`, since others may read the arrays until then.
        """
        if len(keep) == len(self):
            return list(range(len(self)))
        self.move_rows()
        count, retained = len(keep), set(keep)
        behind = (place for place in keep if place >= count)
        self.places = [place if place in retained else next(behind) for place in range(count)]
        for lengths in self.lengths:
            ordered = lengths.of(self.places)
            lengths.set(ordered.tokens, ordered.dropped)
        if self._room > places_for(count) + count // _SPARE:
            self._room = places_for(count)
        return list(self.places)

    def move_rows(self) -> None:
        """Move rows to the places of rows that left. Give memory back if many rows left."""
        count, leaves = len(self), self.leaves
        if leaves and self._room < leaves[0].places:
            places = [*self.places, *[0] * (self._room - count)]
            for leaf in leaves:
                leaf.choose(places)
                mx.eval(leaf.state)
        else:
            moves = [
                (new_place, old_place)
                for new_place, old_place in enumerate(self.places)
                if new_place != old_place
            ]
            if moves:
                to, places = map(list, zip(*moves, strict=True))
                rows = [cache.rows(places) for cache in leaves]
                # MLX writes into the same memory if nothing else reads it any more.
                mx.eval(rows)
                for leaf, arrays in zip(leaves, rows, strict=True):
                    leaf.put(to, arrays)
        self.places = list(range(count))

    def wipe(self, row: int) -> None:
        """Write zeros over the keys and values of a row."""
        for leaf in self.leaves:
            leaf.wipe(self.places[row])
            # One after another: else MLX would hold the old arrays of several layers.
            mx.eval(leaf.state)

    def extract(self, row: int) -> list[Any]:
        """The row's own caches, of a batch with one group, as mlx-lm's classes."""
        self.move_rows()
        return [cache.extract(row) for cache in self.caches]

    def lent(self) -> list[Any]:
        """The caches for reading, while the batch goes on with other arrays. mlx-lm would copy the
        ended row's part, array by array.
        """
        return [
            leaf.lent() if isinstance(leaf, RowsCache) else copy(leaf)
            for leaf in leaves_of(self.caches)
        ]


def caches_of_step(groups: Sequence[RowGroup], width: int) -> list[Any]:
    """The caches for a step of `width` tokens a row, for all rows in the order of the groups."""
    for group in groups:
        group.reserve(width)
    return (
        groups[0].caches if len(groups) == 1 else joined([row_group.caches for row_group in groups])
    )
