"""How many sequences the granted memory has room for."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import (
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from protocol.chunks import LARGEST_TOKENS, LARGEST_TOKENS_ON_CPU

# mlx-lm's caches grow by so many tokens at once.
_STEP_TOKENS = 256


class CacheRoom(NamedTuple):
    """Bytes that a batch's caches may take, and what a row of it takes.

    mlx-lm's batches are dense: every row is as long as the longest. `room_bytes` None is no bound.
    """

    token_bytes: int
    row_bytes: int
    room_bytes: int | None

    def batch_bytes(self, rows: int, longest_tokens: int) -> int:
        """What the caches of a batch take."""
        steps = -(-longest_tokens // _STEP_TOKENS)
        return rows * (steps * _STEP_TOKENS * self.token_bytes + self.row_bytes)

    def takes(self, rows: int, longest_tokens: int, more_tokens: int) -> bool:
        """Whether a sequence of so many tokens may join a batch: while it is merged into it, the
        batch exists twice. Alone it may always run.
        """
        if self.room_bytes is None or rows == 0:
            return True
        merged = self.batch_bytes(rows + 1, max(longest_tokens, more_tokens))
        return merged + self.batch_bytes(rows, longest_tokens) <= self.room_bytes

    def holds(self, rows: int, longest_tokens: int) -> bool:
        """Whether a batch of that size is within the bound."""
        return self.room_bytes is None or self.batch_bytes(rows, longest_tokens) <= self.room_bytes

    @property
    def most_tokens(self) -> int | None:
        """The longest sequence that fits alone, one step of tokens at least; None: no bound."""
        if self.room_bytes is None or self.token_bytes == 0:
            return None
        steps = (self.room_bytes - self.row_bytes) // (_STEP_TOKENS * self.token_bytes)
        return max(1, steps) * _STEP_TOKENS


def largest_chunk() -> int:
    """Tokens of a prompt that may be worked on at once on the device that MLX computes on."""
    return LARGEST_TOKENS_ON_CPU if mx.default_device() == mx.cpu else LARGEST_TOKENS


def measure(model: Any, room_bytes: int | None) -> CacheRoom:
    """Run two tokens through a model and look at its caches.

    Which of them grow is known by their types alone: those with a bound, or with a state, take no
    more than they do for one step of tokens, or than their bound.
    """
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array([[0, 0]]), cache=caches))
    token_bytes = row_bytes = 0
    unseen = list(caches)
    while unseen:
        cache = unseen.pop()
        if isinstance(cache, CacheList):
            unseen += cache.caches
        elif isinstance(cache, RotatingKVCache):
            row_bytes += cache.nbytes * cache.max_size // _tokens(cache)
        elif isinstance(cache, ChunkedKVCache):
            row_bytes += cache.nbytes * (cache.chunk_size + _STEP_TOKENS) // _tokens(cache)
        elif isinstance(cache, KVCache):
            token_bytes += cache.nbytes // _tokens(cache)
        else:
            row_bytes += cache.nbytes
    return CacheRoom(token_bytes, row_bytes, room_bytes)


def _tokens(cache: Any) -> int:
    """How many tokens a cache has room for at present."""
    return int(cache.keys.shape[2])
