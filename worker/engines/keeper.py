"""Between batches and prompt cache: who may have which memory, and what is worth keeping."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from worker.engines.batch import CachedRow, Row
from worker.engines.room import Batch, CacheRoom
from worker.engines.sequence import EngineNeed, Sequence
from worker.prompt_cache.cache import Computed, PromptCache, Taken
from worker.prompt_cache.path import BLOCK_TOKENS, Path

# Of an answer, to cut off one block at a time would cost a copy for each layer as often.
_ANSWER_BLOCKS: Final = 8
# Shared with a row in prefill, this much is worth waiting for.
_SHARED_BLOCKS: Final = 4
# Of those that wait so many may have their blocks read at a time.
_MOST_FETCHES: Final = 8
# What it asks for in advance.
_MORE_BYTES: Final = 48_000_000
# What it wants is told in steps: with each block that is read there would be another figure.
_STEP_BYTES: Final = 4_000_000
# A sequence waits so long for memory in which what it begins with can stay: an answer takes some
# milliseconds, and computing it anew seconds.
_LOAN_S: Final = 0.25


class _Asked(NamedTuple):
    """For a limit, since when."""

    limit_bytes: int
    at: float


class PromptKeeper:
    """What runs comes before what is kept: the cache has what rows leave of the limit."""

    def __init__(self, cache: PromptCache, room: CacheRoom) -> None:
        self.cache = cache
        self._room = room
        self._fetching: set[str] = set()
        # By requests that wait for more memory.
        self._asked: dict[str, _Asked] = {}
        self._limit_bytes = 0
        # Of rows, and not kept yet.
        self._missing_bytes = 0
        # Prompts come that are long enough to be kept.
        self._has_seen_blocks = False

    def beside(self, rows: EngineNeed) -> EngineNeed:
        """What sequences could use, and the cache beside them."""
        asked_bytes = max((each.limit_bytes for each in self._asked.values()), default=0)
        wanted_bytes = max(self._wanted_bytes, asked_bytes - rows.wanted_bytes)
        return rows._replace(
            cache_bytes=self.cache.bytes_,
            cache_wanted_bytes=-(-wanted_bytes // _STEP_BYTES) * _STEP_BYTES,
        )

    @property
    def _wanted_bytes(self) -> int:
        """What the cache could use: what rows have that it hasn't, twice what it has where that is
        what it had to let go, and in any case some more, so that a prompt need not wait for it.
        """
        has_bytes = self.cache.bytes_ + self.cache.coming_bytes
        if not has_bytes and not self._has_seen_blocks:
            return 0
        gone_bytes = min(self.cache.refused_bytes, has_bytes)
        return has_bytes + self._missing_bytes + max(gone_bytes, has_bytes // 4, _MORE_BYTES)

    @property
    def fetching(self) -> bool:
        """Sequences wait for their blocks, or for memory in which these can stay."""
        return bool(self._fetching or self._asked)

    def fetches(self, request_id: str) -> bool:
        return request_id in self._fetching

    def give_way(self, sizes: Iterable[Batch], path: Path | None = None) -> None:
        """Let go of what these batches need; of a path only after everything else."""
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

    def waits(self, sequence: Sequence, sizes: list[Batch], prefilling: list[Row]) -> bool:
        """Whether a sequence should stay out for now: its blocks are being read or are to be, or a
        row computes them.
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

    def waits_for_room(self, sequence: Sequence, joined: list[Batch]) -> bool:
        """Whether a sequence should stay out until more is lent, or isn't: once there are these
        batches the cache would have to let go of what it begins with.
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
        self._asked[request_id] = _Asked(needed_bytes, asked_at)
        return True

    def cached_tokens(self, sequence: Sequence) -> int:
        """How many of its tokens `take` would give."""
        if sequence.path is None:
            return 0
        return self.cache.depth(sequence.path, len(sequence.token_ids)) * BLOCK_TOKENS

    def take(self, sequence: Sequence) -> Taken | None:
        if sequence.path is None:
            return None
        return self.cache.take(sequence.path, len(sequence.token_ids))

    def forget(self, request_ids: Iterable[str]) -> None:
        for each in self._asked.keys() & set(request_ids):
            del self._asked[each]
        for each in self._fetching.intersection(request_ids):
            self.cache.forget(each)
            self._fetching.discard(each)

    def keep(
        self, running: Iterable[CachedRow], ended: Iterable[CachedRow], sizes: list[Batch]
    ) -> None:
        """Keep what rows have that is new. What was kept the last time is computed by now."""
        self.cache.store()
        self._missing_bytes = 0
        for each in running:
            depth = each.row.seen_tokens // BLOCK_TOKENS
            if self.cache.needs_snapshots:
                # mlx-lm tells the end of every segment, and the last token is one of its own.
                if each.at_boundary and _at_boundary(each.row):
                    self._keep(each, depth, sizes, snapshot=True)
                continue
            if depth - (each.row.kept or 0) >= _ANSWER_BLOCKS or _has_prompt_left(each.row):
                self._keep(each, depth, sizes)
            left = depth - (each.row.kept or 0)
            self._missing_bytes += left * self.cache.block_bytes
        if not self.cache.needs_snapshots:
            self._keep_ended(ended, sizes)
        if not sizes:
            # No step follows that computes meanwhile.
            self.cache.store()

    def _keep(
        self, each: CachedRow, depth: int, sizes: list[Batch], *, snapshot: bool = False
    ) -> None:
        row = each.row
        if row.kept is None or (depth <= row.kept and not snapshot):
            return
        computed = _computed(each, depth)
        if computed is None:
            return
        bytes_ = self._bytes_of(computed)
        if snapshot:
            bytes_ += self._room.shape.row_bytes
        if not self._makes_room(bytes_, sizes, [computed.path]):
            return  # There may be more room later: until it ends the row has all its caches.
        self.cache.keep([computed])
        if snapshot:
            self.cache.keep_snapshot(computed.path, each.caches, each.place, depth)
        row.kept = max(row.kept, depth)

    def _keep_ended(self, ended: Iterable[CachedRow], sizes: list[Batch]) -> None:
        """All of them at once, or as many as there is room for."""
        found = (_computed(each, each.row.seen_tokens // BLOCK_TOKENS) for each in ended)
        new = [each for each in found if each is not None and each.first < len(each.path.keys)]
        paths = [each.path for each in new]
        if self._makes_room(sum(self._bytes_of(each) for each in new), sizes, paths):
            self.cache.keep(new)
            return
        for each in new:
            if self._makes_room(self._bytes_of(each), sizes, [each.path]):
                self.cache.keep([each])

    def _bytes_of(self, computed: Computed) -> int:
        return max(0, len(computed.path.keys) - computed.first) * self.cache.block_bytes

    def _makes_room(self, bytes_: int, sizes: list[Batch], paths: list[Path]) -> bool:
        """Not at the cost of these paths: what comes after a gap can't be found."""
        most_bytes = self._most_bytes(sizes)
        if most_bytes is None:
            return True
        if bytes_ <= most_bytes:
            self.cache.shrink(most_bytes - bytes_, paths)
        if self.cache.evictable_bytes + bytes_ <= most_bytes:
            return True
        self.cache.refused_bytes = max(self.cache.refused_bytes, bytes_)
        return False

    def _most_bytes(self, sizes: Iterable[Batch]) -> int | None:
        """What the cache may have on its blocks; None without a limit."""
        if self._room.limit_bytes is None:
            return None
        beside_bytes = self.cache.bytes_ - self.cache.evictable_bytes
        return max(0, self._room.limit_bytes - self._room.needed_bytes(sizes) - beside_bytes)

    def _free_bytes(self, sizes: list[Batch]) -> int:
        """What may be read from disk for another row."""
        most_bytes = self._most_bytes(sizes)
        return 1 << 62 if most_bytes is None else most_bytes - self.cache.coming_bytes

    def _will_share(self, row: Row, path: Path, depth: int) -> bool:
        other = row.sequence.path
        if other is None or row.kept is None:
            return False
        if self.cache.needs_snapshots:
            shared = (
                each
                for each in other.boundaries
                if each <= len(path.keys) and path.keys[each - 1] == other.keys[each - 1]
            )
            return row.kept < max(shared, default=0) >= depth + _SHARED_BLOCKS
        last = depth + _SHARED_BLOCKS - 1
        return (
            row.kept <= last < min(len(path.keys), len(other.keys))
            and path.keys[last] == other.keys[last]
        )


def _computed(each: CachedRow, depth: int) -> Computed | None:
    """So many blocks of a row; None: nothing of it is to be kept."""
    row, path = each.row, each.row.sequence.path
    if path is None or row.kept is None:
        return None
    token_ids = row.sequence.token_ids
    if row.generated:
        token_ids = token_ids + row.generated
    so_far = path.to(token_ids[: depth * BLOCK_TOKENS])
    cut = Path(so_far.root, so_far.keys[:depth], so_far.stored)
    return Computed(cut, token_ids, each.caches, each.place, row.kept)


def _has_prompt_left(row: Row) -> bool:
    """Whether there are blocks of its prompt that aren't kept, and could be."""
    path = row.sequence.path
    return path is not None and row.kept is not None and row.kept < len(path.keys)


def _at_boundary(row: Row) -> bool:
    path = row.sequence.path
    depth, beyond = divmod(row.seen_tokens, BLOCK_TOKENS)
    return path is not None and not beyond and depth in path.boundaries
