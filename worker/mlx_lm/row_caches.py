"""Keys and values of rows that decode together, in which each row has its own length.

In mlx-lm's batch caches all rows end at the same slot, and shorter rows are padded at the left. So
each step needs a mask array, and attention with a mask array is much slower than without one. Also,
all rows must grow by the same number of tokens. Here each row begins at slot 0 and has an end of
its own. A step overwrites the slots after that end. So a row forgets wrong guesses if only its
length is set back.

The arrays have more places than there are rows. A new row is written to a free place. If a row
leaves, the last row moves to its place. In both cases no other row is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import (
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    KVCache,
    RotatingKVCache,
)

from protocol.life import CACHE_STEP_TOKENS
from worker.mlx_lm.cuda import slots_of

_LEAVES: Final = (BatchKVCache, BatchRotatingKVCache)


class RowLengths:
    """How many tokens each row has, for all caches of a batch that keep equally many of these.

    `window` None: the caches keep all tokens. Otherwise they keep at least the last `window` ones.
    `tokens`: the tokens of each row. `dropped`: how many of these left the caches, so that token
    number `n` of a row is in the slot `n - dropped`.
    """

    def __init__(self, tokens: list[int], window: int | None = None) -> None:
        self.tokens = tokens
        self.window = window
        self.dropped = [0] * len(tokens)
        self._offset: int | mx.array | None = None
        self._begins: mx.array | None = None
        self._next_slots: mx.array | None = None

    @property
    def slots(self) -> list[int]:
        """The slots of each row that are in use."""
        return [tokens - gone for tokens, gone in zip(self.tokens, self.dropped, strict=True)]

    @property
    def most_slots(self) -> int:
        return max(self.slots, default=0)

    @property
    def same(self) -> bool:
        """Whether all rows are equally long, so that no row needs a mask."""
        return len(set(self.tokens)) == 1 and len(set(self.dropped)) == 1

    @property
    def offset(self) -> int | mx.array:
        """The position of the next token: one number if all rows are equally long, else (rows,)."""
        if self._offset is None:
            self._offset = self.tokens[0] if self.same else mx.array(self.tokens)
        return self._offset

    @property
    def begins(self) -> mx.array:
        """The slot of the next token of each row, (rows,)."""
        if self._begins is None:
            self._begins = mx.array(self.slots)
        return self._begins

    def next_slots(self, width: int, places: int) -> mx.array:
        """The slots of the next `width` tokens of each row, (places, width). Places without a row
        have the first slots.
        """
        if self._next_slots is None or self._next_slots.shape != (places, width):
            spare = places - len(self.tokens)
            begins = mx.array(self.slots + [0] * spare)
            self._next_slots = begins[:, None] + mx.arange(width)
        return self._next_slots

    def set(self, tokens: list[int], dropped: list[int] | None = None) -> None:
        self.tokens = tokens
        if dropped is not None:
            self.dropped = dropped
        self._offset = self._begins = self._next_slots = None

    def extend(self, other: RowLengths) -> None:
        self.set(self.tokens + other.tokens, self.dropped + other.dropped)

    def of(self, rows: Sequence[int]) -> RowLengths:
        """The lengths of some rows."""
        lengths = RowLengths([self.tokens[row] for row in rows], self.window)
        lengths.dropped = [self.dropped[row] for row in rows]
        return lengths

    def seen_slots(self, width: int) -> tuple[int, int]:
        """The slots that `width` tokens a row may look at: the first, and the end of the last."""
        end = self.most_slots + width
        if self.window is None or width > 1 or not self.same:
            return 0, end
        # A single token of equally long rows needs no mask if it gets the window's slots alone.
        return max(0, end - self.window), end

    def mask(self, width: int, window: int | None = None, *, as_array: bool = False) -> Any:
        """Which of the `seen_slots` each of `width` tokens a row may look at: None for all,
        "causal", or an array (rows, 1, width, slots). `window` None: the window of the caches.
        """
        # Some models ask for more than their caches keep.
        window = min(
            (tokens for tokens in (window, self.window) if tokens is not None), default=None
        )
        begin, end = self.seen_slots(width)
        if self.same and not as_array and (window is None or end - begin <= window):
            return None if width == 1 else "causal"
        places = mx.arange(begin, end)
        last = (self.begins[:, None] + mx.arange(width))[..., None]
        mask = places <= last
        if window is not None and end - begin > window:
            mask = mask & (places > last - window)
        return mask[:, None]


class RowsCache:
    """The keys and values of one layer, shape (places, heads, slots, width). The rows are in the
    first places.

    All caches of a group with the same window share their `lengths`. Models call the methods of
    mlx-lm's caches. `offset` and the mask are those before the step, until the group sets the
    lengths after it.
    """

    # Memory grows by so many tokens, as in mlx-lm's caches.
    step = CACHE_STEP_TOKENS

    def __init__(self, lengths: RowLengths, keys: mx.array, values: mx.array) -> None:
        self.lengths = lengths
        self.keys = keys
        self.values = values
        self._width = 0

    @property
    def offset(self) -> int | mx.array:
        return self.lengths.offset

    @property
    def _idx(self) -> int:
        """mlx-vlm's models ask for the slots in use. Without this name they would wait for the
        device, which has the lengths as an array.
        """
        return self.lengths.most_slots

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.values.nbytes)

    @property
    def state(self) -> tuple[mx.array, mx.array]:
        return self.keys, self.values

    @property
    def places(self) -> int:
        return int(self.keys.shape[0])

    def empty(self) -> bool:
        return False

    def size(self) -> int:
        return max(self.lengths.tokens, default=0)

    def make_mask(
        self,
        N: int,  # noqa: N803  # mlx-lm's name
        window_size: int | None = None,
        return_array: bool = False,
    ) -> Any:
        return self.lengths.mask(N, window_size, as_array=return_array)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Put the tokens of a step, shape (rows, heads, tokens, width), behind each row."""
        rows, _, self._width, _ = keys.shape
        if self.lengths.same:
            begin = self.lengths.most_slots
            end = begin + self._width
            self.keys[:rows, :, begin:end] = keys
            self.values[:rows, :, begin:end] = values
        else:
            slots = self.lengths.next_slots(self._width, self.places)
            self.keys = _put(self.keys, slots, keys)
            self.values = _put(self.values, slots, values)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        rows = len(self.lengths.tokens)
        begin, end = self.lengths.seen_slots(self._width)
        return slots_of(self.keys[:rows], begin, end), slots_of(self.values[:rows], begin, end)

    def reserve(self, slots: int) -> None:
        """Have at least so many slots, in whole steps."""
        present = self.keys.shape[2]
        grown = -(-max(slots, present) // self.step) * self.step - present
        if grown > 0:
            self.keys, self.values = (_longer(array, grown) for array in self.state)

    def drop(self, tokens: Sequence[int], slots: int | None = None) -> None:
        """Forget so many tokens at the beginning of each row, and have `slots` slots then."""
        self.keys, self.values = (_shifted(array, tokens)[:, :, :slots] for array in self.state)

    def add_rows(self, other: RowsCache, rows: Sequence[int], places: int) -> None:
        """Put these rows of another cache behind the own rows, in at least so many places. The
        lengths of both are still those from before.
        """
        used = max(other.lengths.slots[row] for row in rows)
        steps = -(-used // CACHE_STEP_TOKENS)
        slots = max(self.keys.shape[2], steps * CACHE_STEP_TOKENS)
        places = max(self.places, places)
        begin = len(self.lengths.tokens)
        end = begin + len(rows)
        chosen = mx.array(list(rows))
        keys, values = (_larger(array, places, slots) for array in self.state)
        keys[begin:end, :, :used] = other.keys[chosen, :, :used]
        values[begin:end, :, :used] = other.values[chosen, :, :used]
        self.keys, self.values = keys, values

    def part(self, rows: Sequence[int], lengths: RowLengths) -> RowsCache:
        """A cache with a copy of these rows. Their `lengths` are shared by all layers."""
        part = RowsCache(lengths, *self.rows(rows, lengths.most_slots))
        part.step = self.step
        part.reserve(lengths.most_slots + 1)
        return part

    def rows(self, places: Sequence[int], slots: int | None = None) -> list[mx.array]:
        """A copy of some places, up to the slot `slots`: keys and values."""
        chosen = mx.array(list(places))
        return [array[:, :, :slots][chosen] for array in self.state]

    def choose(self, places: Sequence[int]) -> None:
        """Have a copy of these places alone, and as few slots as the rows need."""
        steps = -(-(self.lengths.most_slots + 1) // CACHE_STEP_TOKENS)
        self.keys, self.values = self.rows(places, steps * CACHE_STEP_TOKENS)

    def put(self, places: Sequence[int], rows: Sequence[mx.array]) -> None:
        """Write keys and values of rows to some places."""
        chosen = mx.array(list(places))
        self.keys[chosen], self.values[chosen] = rows

    def wipe(self, place: int) -> None:
        """Write zeros to a place."""
        self.keys[place] = self.values[place] = 0

    def extract(self, row: int) -> Any:
        """The row's own cache, as mlx-lm's class, with a copy of its tokens."""
        end, window = self.lengths.slots[row], self.lengths.window
        begin = 0 if window is None else max(0, end - window)
        single: Any = KVCache() if window is None else RotatingKVCache(window)
        single.keys, single.values = (
            mx.contiguous(array[row : row + 1, :, begin:end]) for array in self.state
        )
        single.offset = self.lengths.tokens[row]
        if window is not None:
            single._idx = end - begin
        return single

    def lent(self) -> RowsCache:
        """The same rows for reading, while this cache goes on with other arrays."""
        rows = range(len(self.lengths.tokens))
        return RowsCache(self.lengths.of(rows), self.keys, self.values)


def reserve(caches: Sequence[RowsCache], width: int) -> None:
    """Make room for `width` tokens more in caches that share their lengths. Tokens that have left
    the window are forgotten then.
    """
    lengths = caches[0].lengths
    slots, window = lengths.slots, lengths.window
    present = caches[0].keys.shape[2]
    # With whole steps MLX gives a single row to cuDNN's attention, which is faster.
    whole = window is not None or present % caches[0].step == 0
    if max(slots) + width <= present and whole:
        return
    if window is None or max(slots) <= window:
        for cache in caches:
            cache.reserve(max(slots) + width)
            # One after another: else MLX would hold the old arrays of several layers.
            mx.eval(cache.state)
        return
    gone = [max(0, slot - window) for slot in slots]
    for cache in caches:
        cache.drop(gone, window + CACHE_STEP_TOKENS)
    dropped = [before + now for before, now in zip(lengths.dropped, gone, strict=True)]
    lengths.set(lengths.tokens, dropped)
    for cache in caches:
        cache.reserve(window + width)


def rows_caches(caches: Sequence[Any]) -> list[Any]:
    """Caches of rows for mlx-lm's batch caches, with their content. Other kinds, and caches that
    have no tokens, stay as they are.
    """
    lengths: dict[int | None, RowLengths] = {}
    return changed(lambda item: _of(item, lengths), caches)


def changed(change: Callable[..., Any], *lists: Sequence[Any]) -> list[Any]:
    """A list of caches with a `change` of each single cache. Of several lists of the same kinds the
    change gets the caches of one layer together.
    """

    def one(*caches: Any) -> Any:
        if not isinstance(caches[0], CacheList):
            return change(*caches)
        # A copy keeps the kind of the list.
        copied = copy(caches[0])
        copied.caches = tuple(changed(change, *(cache.caches for cache in caches)))
        return copied

    return [one(*caches) for caches in zip(*lists, strict=True)]


def _of(cache: Any, lengths: dict[int | None, RowLengths]) -> Any:
    if not isinstance(cache, _LEAVES) or cache.keys is None:
        return cache
    if isinstance(cache, BatchRotatingKVCache):
        cache._temporal_order()
    window = cache.max_size if isinstance(cache, BatchRotatingKVCache) else None
    padding = [max(0, columns) for columns in cache.left_padding.tolist()]
    slots = [cache._idx - columns for columns in padding]
    tokens = cache.offset.tolist()
    if window not in lengths:
        lengths[window] = RowLengths(tokens, window)
        lengths[window].set(
            tokens,
            [row_tokens - used_slots for row_tokens, used_slots in zip(tokens, slots, strict=True)],
        )
    rows = RowsCache(lengths[window], cache.keys, cache.values)
    if any(padding):
        rows.drop(padding)
    return rows


def _put(array: mx.array, slots: mx.array, new: mx.array) -> mx.array:
    """Write `new`, shape (rows, heads, tokens, width), to the `slots`, shape (places, tokens). The
    slots of a row are next to each other. MLX writes into the same memory.
    """
    spare = array.shape[0] - new.shape[0]
    if spare:
        # MLX wants something for each place.
        new = mx.pad(new, [(0, spare), (0, 0), (0, 0), (0, 0)])
    indices = mx.broadcast_to(slots[:, None, :, None], new.shape)
    return mx.put_along_axis(array, indices, new.astype(array.dtype), axis=2)


def _longer(array: mx.array, slots: int) -> mx.array:
    places, heads, _, width = array.shape
    return mx.concatenate([array, mx.zeros((places, heads, slots, width), array.dtype)], axis=2)


def _larger(array: mx.array, places: int, slots: int) -> mx.array:
    more = places - array.shape[0], slots - array.shape[2]
    return mx.pad(array, [(0, more[0]), (0, 0), (0, more[1]), (0, 0)]) if any(more) else array


def _shifted(array: mx.array, slots: Sequence[int]) -> mx.array:
    """`array` with each row moved by so many slots towards its beginning."""
    if len(set(slots)) == 1:
        return mx.roll(array, -slots[0], 2)
    slots = [*slots, *[0] * (array.shape[0] - len(slots))]
    places = (mx.arange(array.shape[2]) + mx.array(slots)[:, None]) % array.shape[2]
    return mx.take_along_axis(array, places[:, None, :, None], axis=2)
