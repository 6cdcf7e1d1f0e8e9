"""What the caches of sequences take, and whether they fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import mlx.core as mx

from protocol.caches import STEP_TOKENS, peak_share
from protocol.chunks import LARGEST_TOKENS, LARGEST_TOKENS_ON_CPU
from worker.mlx_lm.caches import bytes_of, make_caches

_STEP_BYTES: Final = 64_000_000
# Its attention reads 1 to 3 GB a second: 9 rows as long as one of 16,000 tokens took 60 ms a step,
# where a batch of its own for that one takes 7.
_STEP_BYTES_ON_CPU: Final = 8_000_000


class CacheSizes(NamedTuple):
    """What a sequence takes: for each token, and at once. `peak` is the multiple of it that a batch
    takes at most, while it grows or is merged with another.

    mlx-lm's batches are dense: every row is as long as the longest.
    """

    token_bytes: int
    row_bytes: int
    peak: float

    def batch_bytes(self, rows: int, longest_tokens: int) -> int:
        """What the caches of a batch take."""
        steps = -(-longest_tokens // STEP_TOKENS)
        return rows * (steps * STEP_TOKENS * self.token_bytes + self.row_bytes)


NO_CACHES = CacheSizes(0, 0, 1.0)


class Batch(NamedTuple):
    """The size of one."""

    rows: int
    longest_tokens: int


@dataclass
class CacheRoom:
    """The limit of this process, and how much of it anything but caches takes.

    `limit_bytes` None is no bound. It changes as memory is lent and called back, and can grow to
    `most_bytes`, if these are known. A step takes `working_bytes`, and `working_token_bytes` more
    for each token of the longest sequence.
    """

    shape: CacheSizes
    limit_bytes: int | None = None
    most_bytes: int | None = None
    fixed_bytes: int = 0
    # What was taken in vain meanwhile, as by a leak; the next worker has it back.
    grown_bytes: int = 0
    working_bytes: int = 0
    working_token_bytes: int = 0
    # What a batch of texts takes whose vectors are being computed.
    vector_bytes: int = 0

    def needed_bytes(self, batches: Iterable[Batch]) -> int:
        """The limit that these batches need together. They take turns: only one of them grows."""
        sizes = [each for each in batches if each.rows]
        longest_tokens = max((each.longest_tokens for each in sizes), default=0)
        # By steps, as caches grow: a figure for each token would be another one with each token.
        longest_tokens = -(-longest_tokens // STEP_TOKENS) * STEP_TOKENS
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
        """What of the limit there is for caches; 0 without one."""
        taken_bytes = self.fixed_bytes + self.working_bytes
        return max(0, (self.limit_bytes or 0) - taken_bytes)

    def holds(self, batches: Iterable[Batch]) -> bool:
        return self.limit_bytes is None or self.needed_bytes(batches) <= self.limit_bytes

    def could_hold(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens can ever run, alone."""
        if self.limit_bytes is None or self.most_bytes is None:
            return True
        return self._lasting_bytes(tokens) <= max(self.limit_bytes, self.most_bytes)

    def _lasting_bytes(self, tokens: int) -> int:
        passing_bytes = self.grown_bytes + self.vector_bytes
        return self.needed_bytes([Batch(1, tokens)]) - passing_bytes

    @property
    def least_bytes(self) -> int:
        """With one sequence, of one step of a cache."""
        return self._lasting_bytes(STEP_TOKENS)

    def longest_tokens(self, tokens: int) -> int:
        """The most tokens up to these, in whole steps of a cache, that can ever run."""
        if self.could_hold(tokens):
            return tokens
        steps = bisect_left(
            range(1, tokens // STEP_TOKENS + 2),
            True,
            key=lambda step: not self.could_hold(step * STEP_TOKENS),
        )
        return steps * STEP_TOKENS


def largest_chunk() -> int:
    """Tokens of a prompt that may be worked on at once on the device that MLX computes on."""
    return LARGEST_TOKENS_ON_CPU if mx.default_device() == mx.cpu else LARGEST_TOKENS


def step_bytes() -> int:
    """What a step costs beside reading, as bytes of caches that could be read meanwhile."""
    return _STEP_BYTES_ON_CPU if mx.default_device() == mx.cpu else _STEP_BYTES


def measure(model: Any, make: Callable[[], list[Any]] | None = None) -> CacheSizes:
    """Run two tokens through a model and look at its caches, mlx-lm's own if no others are made."""
    caches = make_caches(model) if make is None else make()
    mx.eval(model(mx.array([[0, 0]]), cache=caches))
    return CacheSizes(*bytes_of(caches), peak_share(len(caches)))
