"""The sizes of sequences' caches, and whether they fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import mlx.core as mx

from protocol.life import (
    CACHE_STEP_TOKENS,
    LARGEST_CHUNK_TOKENS,
    LARGEST_CHUNK_TOKENS_ON_CPU,
    peak_share,
)
from worker.mlx_lm.caches import bytes_of, make_caches

_STEP_BYTES: Final = 64_000_000
# Attention on a CPU reads 1 to 3 GB a second: 9 rows as long as one of 16,000 tokens took 60 ms a
# step, and with a batch of its own for the long row a step took 7 ms.
_STEP_BYTES_ON_CPU: Final = 8_000_000


class CacheSizes(NamedTuple):
    """Bytes of a sequence's caches: for each token, and fixed. A batch takes up to `peak` times as
    much while it grows or is merged with another.

    mlx-lm's batches are dense: every row is as long as the longest.
    """

    token_bytes: int
    row_bytes: int
    peak: float

    def batch_bytes(self, rows: int, longest_tokens: int) -> int:
        """The bytes of a batch's caches."""
        steps = -(-longest_tokens // CACHE_STEP_TOKENS)
        return rows * (steps * CACHE_STEP_TOKENS * self.token_bytes + self.row_bytes)


NO_CACHES = CacheSizes(0, 0, 1.0)


class Batch(NamedTuple):
    """The size of a batch."""

    rows: int
    longest_tokens: int


@dataclass
class CacheRoom:
    """The limit of this process, and how much of it is taken by anything but caches.

    `limit_bytes` None is no bound. The limit changes as memory is lent and called back, and can
    grow to `most_bytes`, if that is known. A step takes `working_bytes`, and `working_token_bytes`
    more for each token of the longest sequence.
    """

    shape: CacheSizes
    limit_bytes: int | None = None
    most_bytes: int | None = None
    weight_bytes: int = 0
    fixed_bytes: int = 0
    # Bytes that a leak has taken meanwhile; the next worker has them back.
    grown_bytes: int = 0
    working_bytes: int = 0
    working_token_bytes: int = 0
    # Bytes of the batch of texts whose vectors are being computed.
    vector_bytes: int = 0

    def needed_bytes(self, batches: Iterable[Batch]) -> int:
        """The limit that these batches need together. They take turns, so only one of them grows at
        a time.
        """
        sizes = [each for each in batches if each.rows]
        longest_tokens = max((each.longest_tokens for each in sizes), default=0)
        # In steps, as caches grow. Otherwise each token would change the figure.
        longest_tokens = -(-longest_tokens // CACHE_STEP_TOKENS) * CACHE_STEP_TOKENS
        resting = [self.shape.batch_bytes(*each) for each in sizes]
        return (
            self.fixed_bytes
            + self.working_bytes
            + self.working_token_bytes * longest_tokens
            + self.vector_bytes
            + sum(resting)
            + int(max(resting, default=0) * (self.shape.peak - 1.0))
        )

    @property
    def free_bytes(self) -> int:
        """The part of the limit that caches may have; 0 without a limit."""
        taken_bytes = self.fixed_bytes + self.working_bytes
        return max(0, (self.limit_bytes or 0) - taken_bytes)

    def holds(self, batches: Iterable[Batch]) -> bool:
        return self.limit_bytes is None or self.needed_bytes(batches) <= self.limit_bytes

    def could_hold(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens can ever run, if it runs alone."""
        if self.limit_bytes is None or self.most_bytes is None:
            return True
        return self._lasting_bytes(tokens) <= max(self.limit_bytes, self.most_bytes)

    def _lasting_bytes(self, tokens: int) -> int:
        passing_bytes = self.grown_bytes + self.vector_bytes
        return self.needed_bytes([Batch(1, tokens)]) - passing_bytes

    @property
    def least_bytes(self) -> int:
        """The limit that one sequence needs, with one step of a cache."""
        return self._lasting_bytes(CACHE_STEP_TOKENS)

    def longest_tokens(self, tokens: int) -> int:
        """The most tokens that can ever run, up to `tokens`, in whole steps of a cache."""
        if self.could_hold(tokens):
            return tokens
        steps = bisect_left(
            range(1, tokens // CACHE_STEP_TOKENS + 2),
            True,
            key=lambda step: not self.could_hold(step * CACHE_STEP_TOKENS),
        )
        return steps * CACHE_STEP_TOKENS


def largest_chunk() -> int:
    """The most tokens of prompts that may be computed at once on MLX's device."""
    return LARGEST_CHUNK_TOKENS_ON_CPU if mx.default_device() == mx.cpu else LARGEST_CHUNK_TOKENS


def step_bytes() -> int:
    """The fixed cost of a step, as bytes of caches that could be read in that time."""
    return _STEP_BYTES_ON_CPU if mx.default_device() == mx.cpu else _STEP_BYTES


def measure(model: Any, make: Callable[[], list[Any]] | None = None) -> CacheSizes:
    """Run two tokens through a model and look at its caches; mlx-lm's own, if no others are
    made.
    """
    caches = make_caches(model) if make is None else make()
    mx.eval(model(mx.array([[0, 0]]), cache=caches))
    return CacheSizes(*bytes_of(caches), peak_share(len(caches)))
