"""Blocks: mlx-lm's caches are cut into blocks, each of `BLOCK_TOKENS` tokens, and are joined from
blocks. In memory the least recently used blocks are dropped first.

Caches that grow with the tokens can be cut at any token. Caches with a window or a state (rotating,
recurrent, chunked) can't be cut. At chosen places their whole state is stored as a snapshot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

import mlx.core as mx

from worker.mlx_lm.caches import (
    fill,
    gather,
    grows,
    has_known_state,
    is_batch,
    leaves_of,
    set_state,
    state_of,
    tokens_of,
)
from worker.prompt_cache.path import BLOCK_TOKENS
from worker.system.memory import most_parts

# From so many blocks on it costs less to cut blocks together, which takes two operations for each
# array.
_TOGETHER: Final = 3
# Blocks that are cut together are copied more than once. A copy may have so many bytes.
_MOST_TOGETHER_BYTES: Final = 128_000_000


@dataclass(frozen=True)
class Block:
    """The arrays of a block or of a snapshot. A snapshot also has a `structure`: lists, numbers and
    indices of arrays that make up the states of caches. A block that was read from disk names the
    versions that wrote it.
    """

    arrays: tuple[mx.array, ...]
    structure: Any = None
    writer: str = ""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


class Span(NamedTuple):
    """Blocks `first` to `last` - 1 of a row, in the caches of a batch or of that row alone."""

    caches: list[Any]
    row: int
    first: int
    last: int


class Cutter:
    """Cuts and joins the caches of one model."""

    def __init__(self, model: Any, make_caches: Callable[[], list[Any]]) -> None:
        """Finds the shapes of the model's caches from what two tokens would leave there. Nothing is
        computed.
        """
        self._make_caches = make_caches
        caches = make_caches()
        model(mx.array([[0, 0]]), cache=caches)
        leaves = leaves_of(caches)
        used = [(layer, leaf) for layer, leaf in enumerate(leaves) if not leaf.empty()]
        self._growing = [layer for layer, leaf in used if grows(leaf)]
        self._fixed = [layer for layer, leaf in used if not grows(leaf)]
        # Some architectures have their own kinds of caches, whose states can't be set.
        self.can_restore = all(has_known_state(leaves[layer]) for layer in self._fixed)
        # The arrays of all layers with the same shape become one array, which is much less
        # work than an array for each layer.
        groups: dict[Any, list[tuple[int, int]]] = {}
        token_bytes = 0
        for layer, leaf in used:
            if layer in self._growing:
                for part, array in enumerate(tokens_of(leaf, 0, 0, 2)):
                    shape = (array.shape[1], array.shape[3], array.dtype)
                    groups.setdefault(shape, []).append((layer, part))
                    token_bytes += array.nbytes // 2
        self._groups = list(groups.values())
        # The elements of a block in one of the arrays of each group.
        self._elements = [heads * width * BLOCK_TOKENS for heads, width, _ in groups]
        self.block_bytes = token_bytes * BLOCK_TOKENS

    @property
    def needs_snapshots(self) -> bool:
        return bool(self._fixed)

    def cut_all(self, spans: Sequence[Span]) -> list[list[Block]]:
        """Cut the blocks of each span, like `cut`. Rows of one batch are cut together. One by one,
        each array of each row would be an operation on the GPU, and a few rows would take longer
        than a step.
        """
        groups: list[list[Span]] = []
        for span in spans:
            if groups and self._fits(span, groups[-1]):
                groups[-1].append(span)
            else:
                groups.append([span])
        return [blocks for group in groups for blocks in self._cut_group(group)]

    def _fits(self, span: Span, group: list[Span]) -> bool:
        together_bytes = _blocks_in([*group, span]) * self.block_bytes
        return span.caches is group[0].caches and together_bytes <= _MOST_TOGETHER_BYTES

    def _cut_group(self, spans: Sequence[Span]) -> list[list[Block]]:
        leaves = leaves_of(spans[0].caches)
        batched = all(is_batch(leaves[layer]) for layer in self._growing)
        if batched and len(spans) > 1 and _blocks_in(spans) >= _TOGETHER:
            return self._cut_together(leaves, spans)
        return [self.cut(*span) if span.first < span.last else [] for span in spans]

    def cut(self, caches: list[Any], row: int, first: int, last: int) -> list[Block]:
        """Cut blocks `first` to `last` - 1 of a row, in the caches of a batch or of that row alone.

        The computation of the blocks has begun, and is not waited for: during a wait a GPU would
        run out of work. Once computed, blocks share no memory with the caches.
        """
        leaves, blocks = leaves_of(caches), list[Block]()
        for begin, end in self._pieces(first, last):
            tokens = begin * BLOCK_TOKENS, end * BLOCK_TOKENS
            parts = {layer: tokens_of(leaves[layer], row, *tokens) for layer in self._growing}
            joined = [
                mx.concatenate([parts[layer][part] for layer, part in group], axis=0)
                for group in self._groups
            ]
            blocks += [
                Block(
                    tuple(mx.array(array[:, :, token : token + BLOCK_TOKENS]) for array in joined)
                )
                for token in range(0, (end - begin) * BLOCK_TOKENS, BLOCK_TOKENS)
            ]
        mx.async_eval([block.arrays for block in blocks])  # type: ignore[no-untyped-call]
        return blocks

    def _pieces(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The blocks `first` to `last` - 1 in pieces, each from its first block to its end. The
        arrays of all layers make one array of a piece.
        """
        sizes = zip(self._groups, self._elements, strict=True)
        largest = max((len(group) * elements for group, elements in sizes), default=0)
        most = most_parts(largest)
        return ((begin, min(begin + most, last)) for begin in range(first, last, most))

    def _cut_together(self, leaves: list[Any], spans: Sequence[Span]) -> list[list[Block]]:
        places = [(span.row, depth) for span in spans for depth in range(span.first, span.last)]
        rows = mx.array([[row] for row, _ in places])
        begins = mx.array([[depth * BLOCK_TOKENS] for _, depth in places])
        in_rows = begins + mx.arange(BLOCK_TOKENS)
        gathered = {layer: gather(leaves[layer], rows, in_rows) for layer in self._growing}
        joined = [
            mx.stack([gathered[layer][part] for layer, part in group]) for group in self._groups
        ]
        cut = [
            Block(tuple(mx.contiguous(array[:, piece].swapaxes(1, 2)) for array in joined))
            for piece in range(len(places))
        ]
        mx.async_eval([block.arrays for block in cut])  # type: ignore[no-untyped-call]
        blocks = iter(cut)
        return [[next(blocks) for _ in range(span.first, span.last)] for span in spans]

    def snapshot(self, caches: list[Any], row: int) -> Block:
        """A snapshot of the row: the present state of its caches that can't be cut. Like `cut`,
        this doesn't wait for the computation.
        """
        leaves = leaves_of(caches)
        arrays: list[mx.array] = []
        structure = [_flatten(state_of(leaves[layer], row), arrays) for layer in self._fixed]
        # A rotating cache has its keys in the transposed memory order of the model. A plain copy
        # would have this order, too.
        copies = tuple(mx.array(mx.contiguous(array)) for array in arrays)
        mx.async_eval(copies)  # type: ignore[no-untyped-call]
        return Block(copies, structure)

    def join(self, blocks: Sequence[Block], snapshot: Block | None) -> list[Any]:
        """Make the caches of one row that has seen the tokens of these blocks. There is at least
        one block.
        """
        caches = self._make_caches()
        leaves = leaves_of(caches)
        parts: dict[int, dict[int, mx.array]] = {layer: {} for layer in self._growing}
        for index, group in enumerate(self._groups):
            most = most_parts(self._elements[index] * len(blocks))
            for begin in range(0, len(group), most):
                some = slice(begin, begin + most)
                joined = mx.concatenate([block.arrays[index][some] for block in blocks], axis=2)
                for place, (layer, part) in enumerate(group[some]):
                    parts[layer][part] = joined[place : place + 1]
        for layer, arrays in parts.items():
            fill(leaves[layer], [arrays[part] for part in sorted(arrays)])
        if snapshot is not None:
            for layer, state in zip(self._fixed, snapshot.structure, strict=True):
                set_state(leaves[layer], _unflatten(state, snapshot.arrays))
        return caches


def _blocks_in(spans: Iterable[Span]) -> int:
    return sum(span.last - span.first for span in spans)


def _flatten(value: Any, arrays: list[mx.array]) -> Any:
    if isinstance(value, mx.array):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, list | tuple):
        return [_flatten(part, arrays) for part in value]
    return value


def _unflatten(value: Any, arrays: Sequence[mx.array]) -> Any:
    if isinstance(value, dict):
        # A copy, since a model writes into the arrays of its cache.
        return mx.array(arrays[value["array"]])
    if isinstance(value, list):
        return [_unflatten(part, arrays) for part in value]
    return value


Content = TypeVar("Content")

# The memory of an entry beside its content. Counting it bounds entries without content, too.
_OVERHEAD_BYTES: Final = 512


@dataclass(frozen=True)
class _Entry(Generic[Content]):
    content: Content
    bytes_: int


class LruBlocks(Generic[Content]):
    """Contents by key. The least recently used entries are dropped first. A use of a path counts
    its last entry as the oldest, so the least recently used entry is never in the middle of a path.
    """

    def __init__(self) -> None:
        self.bytes_ = 0
        # The least recently used entry comes first.
        self._entries: OrderedDict[bytes, _Entry[Content]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def depth(self, path: Sequence[bytes]) -> int:
        """How many entries of a path are present, from its beginning to the first gap."""
        for depth, key in enumerate(path):
            if key not in self._entries:
                return depth
        return len(path)

    def get(self, key: bytes) -> Content:
        """Raises: KeyError."""
        return self._entries[key].content

    def items(self) -> Iterator[tuple[bytes, Content]]:
        return ((key, entry.content) for key, entry in self._entries.items())

    def bytes_of(self, keys: Iterable[bytes]) -> int:
        """The bytes of the entries with these keys, as far as they are present."""
        return sum(self._entries[key].bytes_ for key in keys if key in self._entries)

    def use(self, path: Iterable[bytes]) -> None:
        """Note a use of a path, given from its beginning. Entries that are gone are skipped."""
        for key in reversed(list(path)):
            if key in self._entries:
                self._entries.move_to_end(key)

    def put(self, key: bytes, content: Content, bytes_: int) -> None:
        """Add an entry, unless there is one with this key. Afterwards the caller must `use` its
        path.
        """
        if key not in self._entries:
            entry = _Entry(content, bytes_ + _OVERHEAD_BYTES)
            self._entries[key] = entry
            self.bytes_ += entry.bytes_

    def drop(self, key: bytes) -> int:
        """Drop an entry. Returns how many bytes were dropped.

        Raises: KeyError.
        """
        bytes_ = self._entries.pop(key).bytes_
        self.bytes_ -= bytes_
        return bytes_

    def shrink(self, most_bytes: int, spared: Container[bytes] = frozenset()) -> int:
        """Drop the least recently used entries, but none in `spared`, until at most `most_bytes`
        are left. Returns how many bytes were dropped.
        """
        before_bytes = self.bytes_
        going = []
        left_bytes = self.bytes_
        for key, entry in self._entries.items():
            if left_bytes <= most_bytes:
                break
            if key not in spared:
                going.append(key)
                left_bytes -= entry.bytes_
        for key in going:
            self.drop(key)
        return before_bytes - self.bytes_
