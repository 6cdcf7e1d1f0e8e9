"""Whether to read a prompt's blocks from disk, or to compute them: what is faster, as measured."""

from __future__ import annotations

from typing import Final

# How much of the last measurement a speed is: neither a page cache that happened to be warm nor a
# disk that was busy once decides alone.
_WEIGHT: Final = 0.3
# Less says more about the overhead than about the speed.
_LEAST_BYTES: Final = 1_000_000
_LEAST_TOKENS: Final = 64


class Speeds:
    """Of reading in bytes and of prefill in tokens, a second; None before the first measurement."""

    def __init__(self) -> None:
        self.read_bytes_per_s: float | None = None
        self.prefill_tokens_per_s: float | None = None

    def observe_read(self, bytes_: int, seconds: float) -> None:
        if bytes_ >= _LEAST_BYTES and seconds > 0:
            self.read_bytes_per_s = _blend(self.read_bytes_per_s, bytes_ / seconds)

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        if tokens >= _LEAST_TOKENS and seconds > 0:
            self.prefill_tokens_per_s = _blend(self.prefill_tokens_per_s, tokens / seconds)

    def read_s(self, bytes_: int) -> float | None:
        return None if self.read_bytes_per_s is None else bytes_ / self.read_bytes_per_s

    def worth_reading(self, bytes_: int, tokens: int) -> bool:
        """Whether to read so many bytes instead of computing so many tokens; to find out, yes."""
        if self.read_bytes_per_s is None or self.prefill_tokens_per_s is None:
            return tokens > 0
        return bytes_ / self.read_bytes_per_s < tokens / self.prefill_tokens_per_s


def _blend(before: float | None, measured: float) -> float:
    return measured if before is None else before + _WEIGHT * (measured - before)
