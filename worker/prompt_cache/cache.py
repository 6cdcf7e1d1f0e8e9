"""The prompt cache as the engine sees it: it stores blocks in memory and on disk, and makes caches
from them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from protocol.life import MOST_CACHE_FAILURES, CacheQuarantined
from protocol.message_base import pack
from protocol.prompt_store.payloads import Entry
from worker.prompt_cache.block_bytes import Payload, PayloadError, from_bytes
from worker.prompt_cache.blocks import Block, Cutter, Span
from worker.prompt_cache.cached_blocks import CachedBlock, CachedBlocks
from worker.prompt_cache.digests import digest
from worker.prompt_cache.disk import Disk, DiskProof, Fetch
from worker.prompt_cache.found import FoundPrompts
from worker.prompt_cache.path import BLOCK_TOKENS, Path, snapshot_key, usable_depth
from worker.prompt_cache.quarantine import following, parents_of, source_of
from worker.prompt_cache.speeds import MeasuredSpeeds
from worker.prompt_cache.valid_blocks import ValidBlocks, is_finite

logger = logging.getLogger("worker")

# Between two steps the engine takes over at most so many bytes from the reading thread, in some
# milliseconds.
_MOST_ARRIVALS_BYTES: Final = 32_000_000
# A read that takes so many times longer than expected is late. No request waits for a late read,
# since disks sleep and hang.
_LATE: Final = 4.0
_LEAST_LATE_S: Final = 2.0
# A snapshot in the middle of a message goes to disk if at least so many blocks lie between it and
# the last one there.
_LEAST_STORED_BLOCKS: Final = 32
# The most bytes of a result that is remembered, such as what a model sees in the pictures of a
# request.
_MOST_REMEMBERED_BYTES: Final = 64_000_000
# While blocks wait for the disk, the end of the cache looks so often whether it has room.
_CLOSING_S: Final = 0.02
# Of a million tokens.
_MOST_OWED: Final = (1 << 20) // BLOCK_TOKENS


class RestoredCaches(NamedTuple):
    """Caches of one row, for mlx-lm, that have seen `tokens` tokens."""

    caches: list[Any]
    tokens: int


class ComputedRow(NamedTuple):
    """A row whose blocks are stored next, from depth `first` to the end of its path. `row` is the
    index of the row in `caches`.
    """

    path: Path
    token_ids: Sequence[int]
    caches: list[Any]
    row: int
    first: int


class _PendingRead(NamedTuple):
    """A read of blocks for a request. The read is late after `late_at`, a time of the monotonic
    clock.
    """

    fetch: Fetch
    bytes_: int
    late_at: float


class _UnstoredBlock(NamedTuple):
    """A block that goes to disk once it is computed."""

    entry: Entry
    payload: Payload


class _PendingBlock(NamedTuple):
    """A block that goes to disk once the disk has room for it."""

    parent: bytes
    tokens: bytes
    kind: str


class PromptCache:
    """Not thread-safe: only the engine thread calls the methods."""

    def __init__(
        self,
        cutter: Cutter,
        disk: Disk | None,
        report: Callable[[CacheQuarantined], None] = lambda _: None,
        failures: int = 0,
    ) -> None:
        """`report` gets the blocks in quarantine. The cache of earlier workers was found to be
        wrong `failures` times.
        """
        self.speeds = MeasuredSpeeds() if disk is None else MeasuredSpeeds(disk.known)
        # The bytes of blocks that found no room since the limit last grew.
        self.refused_bytes = 0
        self.rehearses = False
        self.found = FoundPrompts()
        # How many times blocks were found to be wrong, since the cache was cleared.
        self.failures = failures
        # Whether blocks have come whose digests aren't recorded.
        self.has_new = False
        self._digests: dict[bytes, int] = {}
        self._cutter = cutter
        self._disk = disk
        self._report = report
        self._blocks = CachedBlocks(needs_snapshots=cutter.needs_snapshots)
        # The keys of blocks in quarantine. On disk another process may still find them for a
        # moment.
        self._quarantined: set[bytes] = set()
        # The parents of blocks that are being read.
        self._parents: dict[bytes, bytes] = {}
        self._valid = ValidBlocks(self._blocks.__contains__)
        self._coming: dict[str, _PendingRead] = {}
        # The last late read. The disk counts as hung until this read ends.
        self._late: Fetch | None = None
        # By key, in the order in which they are written: blocks behind a missing one are no use.
        self._owed: dict[bytes, _PendingBlock] = {}
        self._unstored: list[_UnstoredBlock] = []
        self._unstored_bytes = 0

    @property
    def bytes_(self) -> int:
        """The memory that the cache holds."""
        pending_bytes = 0 if self._disk is None else self._disk.pending_bytes
        return self._blocks.bytes_ + self._unstored_bytes + pending_bytes

    @property
    def evictable_bytes(self) -> int:
        """The part of the cache's memory that can be dropped at once."""
        return self._blocks.bytes_

    @property
    def off(self) -> bool:
        """Whether the cache finds nothing and takes nothing, until it is cleared."""
        return self.failures >= MOST_CACHE_FAILURES

    @property
    def block_bytes(self) -> int:
        return self._cutter.block_bytes

    @property
    def needs_snapshots(self) -> bool:
        return self._cutter.needs_snapshots

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """In the `with` block sequences use the cache as those of requests do. At its end all
        blocks are dropped.
        """
        with self.unnoticed():
            try:
                yield
            finally:
                self.store()
                self._let_go()
                self.refused_bytes = 0

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """In the `with` block nothing is written to disk. Speeds that are measured in it are
        forgotten.
        """
        self.store()
        speeds, self.speeds = self.speeds, MeasuredSpeeds()
        owed, self._owed = self._owed, {}
        self.rehearses = True
        try:
            yield
        finally:
            self.rehearses = False
            self.speeds, self._owed = speeds, owed

    def depth(self, path: Path, tokens: int) -> int:
        """How many blocks of a sequence with `tokens` tokens could be taken from memory now."""
        return self._blocks.depth(path.keys[: usable_depth(tokens)])

    def path_bytes(self, path: Path) -> int:
        """The bytes in memory of a path's blocks and of its deepest snapshot."""
        return self._blocks.bytes_of(self._blocks.beginning(path))

    def restore(self, path: Path, tokens: int) -> RestoredCaches | None:
        """Caches that have seen the beginning of a sequence, from blocks in memory; None: there are
        no such blocks.
        """
        depth = self.depth(path, tokens)
        if depth < self._stored_depth(path, tokens):
            self.speeds.count(read=False)
        if self.needs_snapshots:
            key = snapshot_key(path.keys[depth - 1]) if depth else None
            self._blocks.snapshots.resume(key)
        if (caches := self.join(path, depth)) is None:
            return None
        self._blocks.use_path(path.to_depth(depth))
        return RestoredCaches(caches, depth * BLOCK_TOKENS)

    def fetch(self, request_id: str, path: Path, tokens: int, room_bytes: int) -> bool:
        """Read blocks of a request if that is faster than computing them. Returns whether a read
        has begun or goes on.

        If the missing blocks have more than `room_bytes`, they are not read.
        """
        if request_id in self._coming:
            return self._goes_on(request_id)
        disk, keys = self._disk, self._worth_reading(path, tokens, room_bytes)
        if disk is None or not keys:
            return False
        self._blocks.use_path(path.to_depth(self._stored_depth(path, tokens)))
        self.speeds.count(read=True)
        bytes_ = len(keys) * self.block_bytes
        # The disk reads blocks for other requests first.
        expected_s = self.speeds.read_s(self.coming_bytes + bytes_) or 0.0
        late_at = time.monotonic() + max(_LEAST_LATE_S, _LATE * expected_s)
        self._parents |= parents_of(path)
        self._coming[request_id] = _PendingRead(disk.fetch(keys), bytes_, late_at)
        return True

    def is_worth_fetching(self, path: Path, tokens: int, room_bytes: int) -> bool:
        """Whether `fetch` would begin to read blocks of a sequence with `tokens` tokens."""
        return bool(self._worth_reading(path, tokens, room_bytes))

    def _worth_reading(self, path: Path, tokens: int, room_bytes: int) -> list[bytes]:
        """The keys of a sequence's blocks on disk that are not in memory; empty: reading them is no
        faster than computing, or there is no room.
        """
        if self._disk is None or self._hangs or self.off:
            return []
        begin, end = self.depth(path, tokens), self._stored_depth(path, tokens)
        if end <= begin:
            return []
        keys = [key for key in path.keys[:end] if key not in self._blocks]
        bytes_ = len(keys) * self.block_bytes
        if not self.speeds.worth_reading(bytes_, (end - begin) * BLOCK_TOKENS):
            return []
        if bytes_ > room_bytes:
            self.refused_bytes = max(self.refused_bytes, bytes_)
            return []
        if self.needs_snapshots and (key := snapshot_key(path.keys[end - 1])) not in self._blocks:
            keys.append(key)
        return keys

    @property
    def _hangs(self) -> bool:
        return self._late is not None and not self._late.done

    def _stored_depth(self, path: Path, tokens: int) -> int:
        """How many blocks of a sequence with `tokens` tokens the disk has."""
        end = min(path.stored, usable_depth(tokens))
        if self._quarantined:
            depths = (depth for depth in range(end) if path.keys[depth] in self._quarantined)
            end = next(depths, end)
        if self.needs_snapshots:
            return max(
                (
                    stored_snapshot
                    for stored_snapshot in path.stored_snapshots
                    if stored_snapshot <= end
                ),
                default=0,
            )
        return end

    def forget(self, request_id: str) -> None:
        """Give up reading blocks for a request."""
        if (pending := self._coming.pop(request_id, None)) is not None:
            pending.fetch.abandoned = True
        if not self._coming:
            self._parents.clear()

    @property
    def coming_bytes(self) -> int:
        """The bytes of blocks that are being read, and will be in memory."""
        return sum(read.bytes_ for read in self._coming.values())

    def collect(self) -> None:
        """Take over blocks from the reading thread."""
        if self._disk is None:
            return
        left_bytes = _MOST_ARRIVALS_BYTES
        while left_bytes > 0 and (arrival := self._disk.arrived()) is not None:
            key, payload, seconds = arrival
            left_bytes -= len(payload)
            if key in self._quarantined:
                continue
            began_at = time.monotonic()
            try:
                block = from_bytes(payload)
            except PayloadError:
                continue
            self.speeds.observe_read(len(payload), seconds + time.monotonic() - began_at)
            self._put_block(key, block, self._parents.get(key, b""))
        self._disk.look_again()

    def _goes_on(self, request_id: str) -> bool:
        fetch, _, late_at = self._coming[request_id]
        if not fetch.done:
            if time.monotonic() < late_at:
                return True
            if not self._hangs:
                self._late = fetch
                logger.warning(
                    "The disk is late with stored prompts: until it answers none is read"
                )
        elif any(key not in self._blocks for key in fetch.keys):
            # The missing blocks have been read and not been taken over yet, or they will never
            # come.
            self.collect()
            if self._disk is not None and self._disk.look_again():
                return True
        self.forget(request_id)
        return False

    def add(self, rows: Sequence[ComputedRow]) -> None:
        """Add the blocks of these rows. A block that several rows share is added once."""
        if self.off:
            return
        coming: set[bytes] = set()
        spans = []
        for row in rows:
            keys, first = row.path.keys, row.first
            while first < len(keys) and (keys[first] in self._blocks or keys[first] in coming):
                first += 1
            coming.update(keys[first:])
            spans.append(Span(row.caches, row.row, first, len(keys)))
        for row, span, blocks in zip(rows, spans, self._cutter.cut_all(spans), strict=True):
            for depth, block in enumerate(blocks, start=span.first):
                self._put(row.path, depth, row.path.keys[depth], block, row.token_ids)
            self._blocks.use_path(row.path)
        disk = None if self.rehearses else self._disk
        if disk is not None and (news := self.speeds.changed_speeds()) is not None:
            disk.write_speeds(news)

    def add_snapshot(self, path: Path, caches: list[Any], row: int) -> None:
        """Add a snapshot of a row that has seen exactly the blocks of `path`: the state of caches
        that can't be cut. Then drop the snapshots of the path that this one makes superfluous.
        """
        if self.off:
            return
        key = snapshot_key(path.keys[-1])
        if key not in self._blocks:
            self._put_block(key, self._cutter.snapshot(caches, row), path.keys[-1])
        self._blocks.use_path(path)
        if self._is_to_be_stored(path, key):
            self._want_stored(key, _PendingBlock(path.keys[-1], b"", "snapshot"))
            self._blocks.snapshots.mark_stored(key)
        self._blocks.drop_superfluous(path)

    def _is_to_be_stored(self, path: Path, key: bytes) -> bool:
        """Whether the snapshot at the end of `path` goes to disk. The snapshot at the last boundary
        does, and another one if the blocks since the last one there have as many bytes as itself.
        """
        depth, is_stored = len(path.keys), self._blocks.snapshots.is_stored
        if depth in path.boundaries[-1:]:
            return not is_stored(key)
        snapshots = self._blocks.snapshots_of(path.keys)
        stored = [place for place, snapshot in snapshots.items() if is_stored(snapshot)]
        blocks = depth - max([*stored, *path.stored_snapshots], default=0)
        enough_bytes = self._blocks.bytes_of([key]) if self.block_bytes else 0
        if blocks * self.block_bytes < enough_bytes:
            return False
        return depth in path.boundaries or blocks >= _LEAST_STORED_BLOCKS

    def remember(self, key: bytes, compute: Callable[[], Any]) -> Any:
        """The result of `compute`, lists of arrays. The cache has the result under `key` as long as
        it would have a block, and computes nothing meanwhile. A result that is too large, or has
        anything but arrays, isn't remembered.
        """
        if self.off:
            return compute()
        if key in self._blocks:
            self._blocks.use([key])
            return self._blocks.get(key).block.structure
        result = compute()
        arrays = [item for _, item in tree_flatten(result)]
        if all(isinstance(array, mx.array) for array in arrays):
            block = Block(tuple(arrays), result)
            if block.nbytes <= _MOST_REMEMBERED_BYTES:
                mx.eval(arrays)
                self._put_block(key, block, b"")
        return result

    def note_valid(self, path: Path) -> None:
        """Note that a step with valid logits has looked at the blocks of `path`."""
        self._valid.record(path.keys)

    def first_doubtful(self, path: Path, looked_at: int) -> int:
        """The first block of a path that isn't finite, or that no step with valid logits has looked
        at. Such steps have looked at the first `looked_at` blocks.
        """
        first = max(looked_at, self._valid.depth(path.keys))
        for depth, key in enumerate(path.keys[:first]):
            keys = (
                block_key for block_key in (key, snapshot_key(key)) if block_key in self._blocks
            )
            if not all(is_finite(self._blocks.get(block_key).block) for block_key in keys):
                return depth
        return first

    def store(self) -> None:
        """Write new blocks to the disk. Waits until they are computed."""
        if self._disk is not None:
            self._collect_unstored(self._disk)
        for block in self._remove_unstored():
            parts = block.payload.parts()
            if self._disk is not None and not self.rehearses:
                self._disk.write(block.entry, parts)

    def shrink(self, most_bytes: int, paths: Iterable[Path] = ()) -> int:
        """Drop blocks until at most `most_bytes` are left, but no blocks of `paths`. Returns how
        many bytes were dropped.

        While inner snapshots take more than their share, the one whose loss costs least is dropped
        first. Then the least recently used blocks and snapshots are dropped.
        """
        spared = frozenset[bytes]().union(*map(self._blocks.beginning, paths))
        before_bytes = self._blocks.bytes_
        self._blocks.thin(max(0, most_bytes), spared)
        self._blocks.shrink(max(0, most_bytes), spared)
        gone_bytes = before_bytes - self._blocks.bytes_
        self.refused_bytes += gone_bytes
        return gone_bytes

    # Proofs, while the model is at rest

    def keys(self) -> list[bytes]:
        """The keys of all that is in memory."""
        return [key for key, _ in self._blocks.items()]

    def record_digests(self, is_interrupted: Callable[[], bool]) -> None:
        """Record the digests of blocks that have none yet, unless a request comes."""
        new = [key for key in self.keys() if key not in self._digests]
        for key in new:
            if is_interrupted():
                return
            self._digests[key] = self._digest(key)
        self._digests = {key: self._digests[key] for key in self.keys()}
        self.has_new = False

    def changed(self, keys: Iterable[bytes]) -> list[bytes]:
        """Those of `keys` whose arrays in memory have another digest now than at first."""
        known = [key for key in keys if key in self._blocks and key in self._digests]
        return [key for key in known if self._digest(key) != self._digests[key]]

    def _digest(self, key: bytes) -> int:
        return digest(self._blocks.get(key).block.arrays).item()  # type: ignore[return-value]

    def snapshot_depths(self, path: Path) -> list[int] | None:
        """The depths of the path's snapshots in memory; None: its caches need no snapshots."""
        return list(self._blocks.snapshots_of(path.keys)) if self.needs_snapshots else None

    def join(self, path: Path, depth: int) -> list[Any] | None:
        """Caches that have seen the first `depth` blocks of a path; None: they aren't in memory."""
        keys = path.keys[:depth]
        if not keys or self._blocks.depth(keys) < depth:
            return None
        blocks = [self._blocks.get(key).block for key in keys]
        snapshot = self._blocks.get(snapshot_key(keys[-1])).block if self.needs_snapshots else None
        return self._cutter.join(blocks, snapshot)

    def drop(self, path: Path) -> None:
        """Drop the blocks and snapshots of a path from memory."""
        for key in (*path.keys, *map(snapshot_key, path.keys)):
            if key in self._blocks:
                self._blocks.drop(key)

    def parent(self, key: bytes) -> bytes | None:
        """The key of the block before a block; None: memory has no such block."""
        parent = self._blocks.get(key).parent if key in self._blocks else b""
        return parent if parent in self._blocks else None

    def prove_disk(self) -> DiskProof | None:
        """What was proven on disk since the last call. Has the next blocks read beside the engine;
        None: no disk has blocks.
        """
        return None if self._disk is None else self._disk.prove()

    def fail(self) -> None:
        """Count that the cache was found to be wrong. After the second time nothing is cached."""
        self.failures += 1
        if self.off:
            self._remove_unstored()
            self._let_go()

    def quarantine(self, path: Path, first: int, why: str) -> int:
        """Let the blocks of `path` from depth `first` on, and all that follow them on other paths,
        not be found any more. In memory they are dropped; on disk they stay unfound until they are
        evicted or cleared. Returns how many blocks and snapshots this worker knew.

        A block that is computed anew later takes the place of one in quarantine.
        """
        in_memory = self.quarantine_blocks(path.keys[first:], why, len(path.keys))
        return len({*path.keys[first : path.stored], *in_memory})

    def quarantine_blocks(self, blocks: Sequence[bytes], why: str, joined: int) -> set[bytes]:
        """Like `quarantine`, for blocks of a prompt that is joined of `joined` blocks. Returns the
        keys of all that was in memory.
        """
        keys = {*blocks, *map(snapshot_key, blocks)}
        parents = {key: cached.parent for key, cached in self._blocks.items()}
        in_memory = following(parents, keys)
        news = CacheQuarantined(
            blocks=len(in_memory),
            blocks_bytes=self._blocks.bytes_of(in_memory),
            source=source_of([self._blocks.get(key).block for key in in_memory], joined),
            why=why,
        )
        for key in in_memory:
            self._blocks.drop(key)
        self._quarantined |= keys | in_memory
        self._owed = {key: owed for key, owed in self._owed.items() if key not in self._quarantined}
        self._unstored = [
            unstored for unstored in self._unstored if unstored.entry.key not in self._quarantined
        ]
        self._unstored_bytes = sum(unstored.payload.nbytes for unstored in self._unstored)
        if self._disk is not None:
            self._disk.quarantine([*keys, *(in_memory - keys)])
        self._report(news)
        return in_memory

    def clear(self) -> int:
        """Drop all blocks in memory, and all blocks on their way to or from the disk. Returns the
        bytes that were in memory.
        """
        self._remove_unstored()
        self._quarantined.clear()
        self.failures = 0
        if self._disk is not None:
            self._disk.clear()
        return self._let_go()

    def close(self, at_most_s: float) -> None:
        """Write what the disk has room for within `at_most_s` seconds, and let all blocks go."""
        until = time.monotonic() + at_most_s
        self.store()
        while self._owed and time.monotonic() < until:
            time.sleep(_CLOSING_S)
            self.store()
        self._let_go()
        if self._disk is not None:
            self._disk.close(max(0.0, until - time.monotonic()))

    def _remove_unstored(self) -> list[_UnstoredBlock]:
        unstored, self._unstored, self._unstored_bytes = self._unstored, [], 0
        return unstored

    def _let_go(self) -> int:
        for request_id in list(self._coming):
            self.forget(request_id)
        self._owed.clear()
        self.found.clear()
        return self._blocks.shrink(0)

    def _put(
        self, path: Path, depth: int, key: bytes, block: Block, token_ids: Sequence[int]
    ) -> None:
        parent = path.keys[depth - 1] if depth else path.root
        self._put_block(key, block, parent)
        if depth < path.stored and key not in self._quarantined:
            return
        tokens = pack(list(token_ids[depth * BLOCK_TOKENS : (depth + 1) * BLOCK_TOKENS]))
        self._want_stored(key, _PendingBlock(parent, tokens, "block"))

    def _put_block(self, key: bytes, block: Block, parent: bytes) -> None:
        if key not in self._blocks:
            self._blocks.put(key, CachedBlock(block, parent), block.nbytes)
            self._digests.pop(key, None)
            self.has_new = True

    def _want_stored(self, key: bytes, owed: _PendingBlock) -> None:
        if self._disk is not None and len(self._owed) < _MOST_OWED:
            self._owed[key] = owed
            self._collect_unstored(self._disk)

    def _collect_unstored(self, disk: Disk) -> None:
        """Get blocks in memory ready for the disk, as far as it has room. A prompt may be computed
        faster than the disk writes.
        """
        while self._owed:
            key, owed = next(iter(self._owed.items()))
            if key in self._blocks:
                block = self._blocks.get(key).block
                if not disk.has_room(self._unstored_bytes + block.nbytes):
                    return
                payload = Payload(block)
                entry = Entry(key, owed.parent, owed.tokens, payload.nbytes, owed.kind)
                self._unstored.append(_UnstoredBlock(entry, payload))
                self._unstored_bytes += payload.nbytes
            del self._owed[key]
