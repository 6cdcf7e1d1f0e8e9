"""The part of an engine's memory that the prompt cache may have, beside the running sequences."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from worker.engines.room import BatchSize, CacheRoom
from worker.engines.row import CachedRow, SequenceRow
from worker.engines.sequence import EngineNeed, Sequence
from worker.prompt_cache.cache import ComputedRow, PromptCache, RestoredCaches
from worker.prompt_cache.found import FoundPrompt
from worker.prompt_cache.path import BLOCK_TOKENS, Path

# Blocks of an answer are stored so many at a time, since each time costs a copy in each layer.
_ANSWER_BLOCKS: Final = 8
# A sequence waits for a row in prefill if that row will compute at least so many blocks with which
# the sequence begins, too.
_SHARED_BLOCKS: Final = 4
# Blocks of at most so many waiting sequences are read from disk at a time.
_MOST_FETCHES: Final = 8
# The cache wants at least so many bytes more than it has, in advance.
_MORE_BYTES: Final = 48_000_000
# The bytes that the cache wants are rounded up to such steps. Otherwise each block would change the
# figure.
_STEP_BYTES: Final = 4_000_000
# A sequence waits at most so long for a loan that lets its cached blocks stay. The gateway answers
# within milliseconds, and computing the blocks anew takes seconds.
_LOAN_S: Final = 0.25


class _LoanRequest(NamedTuple):
    """The limit that a sequence wants, and the time when its wait began."""

    limit_bytes: int
    at: float


class PromptKeeper:
    """Shares the memory limit: running sequences come first, and the prompt cache has the rest."""

    def __init__(self, cache: PromptCache, room: CacheRoom) -> None:
        self.cache = cache
        self._room = room
        self._fetching: set[str] = set()
        # The limits that waiting sequences want, by request.
        self._asked: dict[str, _LoanRequest] = {}
        self._limit_bytes = 0
        # The bytes of blocks that rows have computed and the cache doesn't have yet.
        self._missing_bytes = 0
        # Whether any request had a whole block.
        self._has_seen_blocks = False

    def beside(self, rows: EngineNeed) -> EngineNeed:
        """The needs of the rows, completed by the needs of the prompt cache."""
        asked_bytes = max((request.limit_bytes for request in self._asked.values()), default=0)
        wanted_bytes = max(self._wanted_bytes, asked_bytes - rows.wanted_bytes)
        return rows._replace(
            cache_bytes=self.cache.bytes_,
            cache_wanted_bytes=-(-wanted_bytes // _STEP_BYTES) * _STEP_BYTES,
        )

    @property
    def _wanted_bytes(self) -> int:
        """The memory that the cache could use: its present bytes, the blocks of rows that it
        doesn't have yet, and a reserve, so that a prompt need not wait for memory. The reserve
        covers the bytes that the cache lately had no room for.
        """
        has_bytes = self.cache.bytes_ + self.cache.coming_bytes
        if not has_bytes and not self._has_seen_blocks:
            return 0
        gone_bytes = min(self.cache.refused_bytes, has_bytes)
        return has_bytes + self._missing_bytes + max(gone_bytes, has_bytes // 4, _MORE_BYTES)

    @property
    def fetching(self) -> bool:
        """Whether sequences wait for blocks from disk, or for memory in which their blocks can
        stay.
        """
        return bool(self._fetching or self._asked)

    def fetches(self, request_id: str) -> bool:
        return request_id in self._fetching

    def give_way(self, sizes: Iterable[BatchSize], path: Path | None = None) -> None:
        """Drop cached blocks for which batches of these sizes leave no room. Blocks of `path` are
        dropped last.
        """
        limit_bytes = self._room.limit_bytes or 0
        if limit_bytes > self._limit_bytes:
            self.cache.refused_bytes = 0
        self._limit_bytes = limit_bytes
        most_bytes = self._most_bytes(sizes)
        if most_bytes is None or self.cache.evictable_bytes <= most_bytes:
            return
        if path is not None:
            self.cache.shrink(most_bytes, [path])
        self.cache.shrink(most_bytes)

    def waits(
        self, sequence: Sequence, sizes: list[BatchSize], prefilling: list[SequenceRow]
    ) -> bool:
        """Whether a sequence should wait for cached blocks. It should if its blocks are read from
        disk now or soon, or if a row in `prefilling` will compute them soon. This may start a read.
        """
        path = sequence.path
        if path is None or not path.keys:
            return False
        self._has_seen_blocks |= not self.cache.rehearses
        request_id, tokens = sequence.request_id, len(sequence.token_ids)
        free_bytes = self._free_bytes(sizes)
        if request_id in self._fetching or len(self._fetching) < _MOST_FETCHES:
            if self.cache.fetch(request_id, path, tokens, free_bytes):
                self._fetching.add(request_id)
                return True
            self._fetching.discard(request_id)
        elif self.cache.is_worth_fetching(path, tokens, free_bytes):
            return True
        depth = self.cache.depth(path, tokens)
        return any(self._will_share(row, path, depth) for row in prefilling)

    def waits_for_room(self, sequence: Sequence, joined: list[BatchSize]) -> bool:
        """Whether a sequence should wait for a loan. It should if the cache has no room for the
        first blocks of the sequence beside batches of the sizes `joined`. Returns False once the
        sequence has waited long enough.
        """
        request_id = sequence.request_id
        most_bytes = self._most_bytes(joined)
        path_bytes = 0 if sequence.path is None else self.cache.path_bytes(sequence.path)
        if most_bytes is None or path_bytes <= most_bytes:
            self._asked.pop(request_id, None)
            return False
        now = time.monotonic()
        asked_at = self._asked[request_id].at if request_id in self._asked else now
        if now - asked_at >= _LOAN_S:
            del self._asked[request_id]
            return False
        beside_bytes = self.cache.bytes_ - self.cache.evictable_bytes
        needed_bytes = self._room.needed_bytes(joined) + beside_bytes + path_bytes
        self._asked[request_id] = _LoanRequest(needed_bytes, asked_at)
        return True

    def cached_tokens(self, sequence: Sequence) -> int:
        """The number of tokens that the caches from `restore` would have seen."""
        if sequence.path is None:
            return 0
        return self.cache.depth(sequence.path, len(sequence.token_ids)) * BLOCK_TOKENS

    def restore(self, sequence: Sequence) -> RestoredCaches | None:
        if sequence.path is None:
            return None
        restored = self.cache.restore(sequence.path, len(sequence.token_ids))
        if restored is not None and not self.cache.rehearses:
            path = sequence.path.to_depth(restored.tokens // BLOCK_TOKENS)
            self.cache.found.add(FoundPrompt(path, sequence.token_ids))
        return restored

    def quarantine(self, path: Path, first: int, why: str) -> int:
        """See `PromptCache.quarantine`."""
        return self.cache.quarantine(path, first, why)

    def forget(self, request_ids: Iterable[str]) -> None:
        for request_id in self._asked.keys() & set(request_ids):
            del self._asked[request_id]
        for request_id in self._fetching.intersection(request_ids):
            self.cache.forget(request_id)
            self._fetching.discard(request_id)

    def quarantine_row(self, row: SequenceRow) -> int:
        """Have no sequence find the doubtful blocks of a row whose logits weren't valid: those from
        the first on that isn't finite, or that no step with valid logits has looked at. Returns how
        many these are.
        """
        path = row.sequence.path
        if path is None or self.cache.rehearses:
            return 0
        token_ids = row.sequence.token_ids + row.generated
        path = path.to(token_ids)
        # The step of the last token that was given out has looked at all tokens before.
        looked_at = (len(token_ids) - 1) // BLOCK_TOKENS if row.generated else 0
        first = self.cache.first_doubtful(path, looked_at)
        if first >= len(path.keys):
            return 0
        return self.quarantine(path, first, "the logits of a step weren't valid")

    def _note_valid(self, row: SequenceRow) -> None:
        """Note the blocks of a row's prompt as valid, once the row has given out a token."""
        if row.generated and not row.noted_valid and row.sequence.path is not None:
            row.noted_valid = True
            self.cache.note_valid(row.sequence.path)

    def store_blocks(
        self, running: Iterable[CachedRow], ended: Iterable[CachedRow], sizes: list[BatchSize]
    ) -> None:
        """Store new blocks of rows in the prompt cache. First hand the blocks of the last call to
        the disk: they are computed by now.
        """
        self.cache.store()
        self._missing_bytes = 0
        for row in running:
            self._note_valid(row.row)
            depth, beyond = divmod(row.row.seen_tokens, BLOCK_TOKENS)
            if self.cache.needs_snapshots:
                # A snapshot has the present state. After a wrong guess the state of a row that
                # decodes can be that of some tokens before.
                if row.prefills and not beyond:
                    self._store_row(row, depth, sizes)
                continue
            new_blocks = depth - (row.row.cached_blocks or 0)
            if new_blocks >= _ANSWER_BLOCKS or _has_prompt_left(row.row):
                self._store_row(row, depth, sizes)
            left = depth - (row.row.cached_blocks or 0)
            self._missing_bytes += left * self.cache.block_bytes
        if not self.cache.needs_snapshots:
            self._store_ended(ended, sizes)
        if not sizes:
            # No step follows during which the new blocks would be computed.
            self.cache.store()

    def _store_row(self, cached_row: CachedRow, depth: int, sizes: list[BatchSize]) -> None:
        row = cached_row.row
        if row.cached_blocks is None or depth <= row.cached_blocks:
            return
        computed = _computed(cached_row, depth)
        if computed is None:
            return
        bytes_ = self._bytes_of(computed)
        if self.cache.needs_snapshots:
            bytes_ += self._room.shape.row_bytes
        if not self._makes_room(bytes_, sizes, [computed.path]):
            return  # There may be more room later: a row has all its caches until it ends.
        self.cache.add([computed])
        if self.cache.needs_snapshots:
            self.cache.add_snapshot(computed.path, cached_row.caches, cached_row.place)
        row.cached_blocks = depth

    def _store_ended(self, ended: Iterable[CachedRow], sizes: list[BatchSize]) -> None:
        """Store the blocks of all ended rows at once. If there is too little room, store those of
        as many rows as possible.
        """
        computed = (_computed(row, row.row.seen_tokens // BLOCK_TOKENS) for row in ended)
        new = [
            computed_row
            for computed_row in computed
            if computed_row is not None and computed_row.first < len(computed_row.path.keys)
        ]
        paths = [row.path for row in new]
        if self._makes_room(sum(self._bytes_of(row) for row in new), sizes, paths):
            self.cache.add(new)
            return
        for row in new:
            if self._makes_room(self._bytes_of(row), sizes, [row.path]):
                self.cache.add([row])

    def _bytes_of(self, computed: ComputedRow) -> int:
        return max(0, len(computed.path.keys) - computed.first) * self.cache.block_bytes

    def _makes_room(self, bytes_: int, sizes: list[BatchSize], paths: list[Path]) -> bool:
        """Drop other blocks until `bytes_` more fit beside batches of these sizes. Blocks of
        `paths` stay, since blocks after a gap can't be found. Returns False if there is too little
        room.
        """
        most_bytes = self._most_bytes(sizes)
        if most_bytes is None:
            return True
        if bytes_ <= most_bytes:
            self.cache.shrink(most_bytes - bytes_, paths)
        if self.cache.evictable_bytes + bytes_ <= most_bytes:
            return True
        self.cache.refused_bytes = max(self.cache.refused_bytes, bytes_)
        return False

    def _most_bytes(self, sizes: Iterable[BatchSize]) -> int | None:
        """The most bytes that evictable blocks may take beside batches of these sizes; None: there
        is no limit.
        """
        if self._room.limit_bytes is None:
            return None
        beside_bytes = self.cache.bytes_ - self.cache.evictable_bytes
        return max(0, self._room.limit_bytes - self._room.needed_bytes(sizes) - beside_bytes)

    def _free_bytes(self, sizes: list[BatchSize]) -> int:
        """The most bytes of blocks that may be read for another row. Blocks in memory can be
        dropped for these.
        """
        most_bytes = self._most_bytes(sizes)
        return 1 << 62 if most_bytes is None else most_bytes - self.cache.coming_bytes

    def _will_share(self, row: SequenceRow, path: Path, depth: int) -> bool:
        other = row.sequence.path
        if other is None or row.cached_blocks is None:
            return False
        if self.cache.needs_snapshots:
            shared = (
                boundary
                for boundary in other.boundaries
                if boundary <= len(path.keys)
                and path.keys[boundary - 1] == other.keys[boundary - 1]
            )
            return row.cached_blocks < max(shared, default=0) >= depth + _SHARED_BLOCKS
        last = depth + _SHARED_BLOCKS - 1
        return (
            row.cached_blocks <= last < min(len(path.keys), len(other.keys))
            and path.keys[last] == other.keys[last]
        )


def _computed(cached_row: CachedRow, depth: int) -> ComputedRow | None:
    """The blocks of a row up to `depth` that the cache doesn't have. None: no blocks of this row
    are stored.
    """
    row, path = cached_row.row, cached_row.row.sequence.path
    if path is None or row.cached_blocks is None:
        return None
    token_ids = row.sequence.token_ids
    if row.generated:
        token_ids = token_ids + row.generated
    so_far = path.to(token_ids[: depth * BLOCK_TOKENS])
    return ComputedRow(
        so_far.to_depth(depth), token_ids, cached_row.caches, cached_row.place, row.cached_blocks
    )


def _has_prompt_left(row: SequenceRow) -> bool:
    """Whether the row's prompt has a block that isn't in the prompt cache yet."""
    path = row.sequence.path
    return path is not None and row.cached_blocks is not None and row.cached_blocks < len(path.keys)
