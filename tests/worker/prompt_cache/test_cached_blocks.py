"""How far a path reaches in memory, and which of its snapshots go."""

from __future__ import annotations

import mlx.core as mx

from worker.prompt_cache.blocks import Block
from worker.prompt_cache.cached_blocks import CachedBlock, CachedBlocks
from worker.prompt_cache.path import Path, snapshot_key

PATH = Path(b"root", tuple(bytes([depth]) for depth in range(1, 9)))
KEYS = PATH.keys
BLOCK, SNAPSHOT = (CachedBlock(Block((mx.zeros(count),)), b"") for count in (100, 10_000))


def _blocks(*depths: int) -> CachedBlocks:
    """All blocks of the path, and snapshots at these depths."""
    blocks = CachedBlocks(needs_snapshots=True)
    for key in KEYS:
        blocks.put(key, BLOCK, BLOCK.block.nbytes)
    _add_snapshots(blocks, *depths)
    return blocks


def _add_snapshots(blocks: CachedBlocks, *depths: int) -> None:
    for depth in depths:
        blocks.put(_snapshot(depth), SNAPSHOT, SNAPSHOT.block.nbytes)
    blocks.use_path(PATH)


def _snapshot(depth: int) -> bytes:
    return snapshot_key(KEYS[depth - 1])


def test_depth_is_that_of_the_last_snapshot_before_a_gap() -> None:
    blocks = _blocks(2, 5, 8)
    assert [blocks.depth(KEYS), blocks.depth(KEYS[:7]), blocks.depth(KEYS[:1])] == [8, 5, 0]
    blocks.drop(KEYS[4])
    assert blocks.depth(KEYS) == 2


def test_depth_without_snapshots_is_that_of_the_first_gap() -> None:
    blocks = CachedBlocks(needs_snapshots=False)
    for key in KEYS[:6]:
        blocks.put(key, BLOCK, BLOCK.block.nbytes)
    assert blocks.depth(KEYS) == 6
    assert blocks.beginning(PATH) == frozenset(KEYS)


def test_the_beginning_of_a_path_has_its_deepest_snapshot_alone() -> None:
    assert _blocks(2, 5).beginning(PATH) == frozenset([*KEYS, _snapshot(5)])


def test_short_memory_costs_inner_snapshots_first() -> None:
    blocks = _blocks(2, 4, 6, 8)
    blocks.thin(blocks.bytes_ // 2, frozenset([_snapshot(4)]))
    assert list(blocks.snapshots_of(KEYS)) == [4, 8]
    assert all(key in blocks for key in KEYS)


def test_the_path_loses_the_snapshots_far_from_its_end() -> None:
    blocks = _blocks(1, 2, 3, 8)
    blocks.drop_superfluous(PATH)
    assert list(blocks.snapshots_of(KEYS)) == [3, 8]


def test_a_snapshot_that_comes_again_is_a_new_one() -> None:
    """So it goes to disk again, although one with its key was there."""
    blocks = _blocks(8)
    blocks.snapshots.mark_stored(_snapshot(8))
    blocks.shrink(0)
    _add_snapshots(blocks, 8)
    assert not blocks.snapshots.is_stored(_snapshot(8))
