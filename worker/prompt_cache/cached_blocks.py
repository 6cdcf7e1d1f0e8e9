"""The blocks and snapshots in memory, along the paths of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from worker.prompt_cache.blocks import Block, LruBlocks
from worker.prompt_cache.path import Path, snapshot_key
from worker.prompt_cache.snapshots import Snapshots, superfluous

# When memory is short, inner snapshots are dropped down to this share. Without its last snapshot a
# path loses all its blocks behind the snapshot before.
_INNER_SHARE: Final = 1 / 8


class CachedBlock(NamedTuple):
    """A block or snapshot in memory. The block before it has the key `parent`; that of a snapshot
    is the block at whose end it is.
    """

    block: Block
    parent: bytes


class CachedBlocks(LruBlocks[CachedBlock]):
    """The blocks of one model and its snapshots, by key. `snapshots` has their uses."""

    def __init__(self, *, needs_snapshots: bool) -> None:
        super().__init__()
        self.snapshots = Snapshots()
        self._needs_snapshots = needs_snapshots

    def depth(self, path: Sequence[bytes]) -> int:
        """From how many blocks of a path caches can be made: those before the first gap, up to the
        last snapshot there if caches need one.
        """
        depth = super().depth(path)
        return self._deepest(path, depth) if self._needs_snapshots else depth

    def beginning(self, path: Path) -> frozenset[bytes]:
        """The keys of a path's blocks, and the key of its deepest snapshot in memory."""
        deepest = self._deepest(path.keys, len(path.keys)) if self._needs_snapshots else 0
        snapshots = [snapshot_key(path.keys[deepest - 1])] if deepest else []
        return frozenset([*path.keys, *snapshots])

    def snapshots_of(self, keys: Sequence[bytes]) -> dict[int, bytes]:
        """The snapshots in memory at the ends of these blocks, by their depths."""
        keys_by_depth = ((depth, snapshot_key(key)) for depth, key in enumerate(keys, start=1))
        return {depth: key for depth, key in keys_by_depth if key in self}

    def use_path(self, path: Path) -> None:
        """Note a use of a path's blocks and snapshots."""
        keys: Iterable[bytes] = path.keys
        if self._needs_snapshots:
            snapshots = self.snapshots_of(path.keys)
            self.snapshots.use(list(snapshots.items()), len(path.keys), path.boundaries)
            keys = (key for block_key in path.keys for key in (block_key, snapshot_key(block_key)))
        self.use(keys)

    def drop(self, key: bytes) -> int:
        """Drop a block or a snapshot, as `LruBlocks` does."""
        if key in self.snapshots:
            self.snapshots.drop(key)
        return super().drop(key)

    def drop_superfluous(self, path: Path) -> None:
        """Drop the snapshots that a path can lose."""
        snapshots = self.snapshots_of(path.keys)
        spared = {
            depth for depth, snapshot in snapshots.items() if self.snapshots.is_at_message(snapshot)
        }
        for depth in superfluous(list(snapshots), spared):
            self.drop(snapshots[depth])

    def thin(self, most_bytes: int, spared: frozenset[bytes]) -> None:
        """Drop the inner snapshots whose loss costs least, but none in `spared`, until at most
        `most_bytes` are left or inner snapshots have their share.
        """
        inner_bytes = self.bytes_of(self.snapshots.inner)
        while self.bytes_ > most_bytes and inner_bytes > _INNER_SHARE * most_bytes:
            key = self.snapshots.least(spared)
            if key is None:
                return
            inner_bytes -= self.drop(key)

    def _deepest(self, keys: Sequence[bytes], depth: int) -> int:
        """The greatest depth, up to `depth`, at which memory has a snapshot; 0: there is none."""
        depths = range(depth, 0, -1)
        return next((index for index in depths if snapshot_key(keys[index - 1]) in self), 0)
