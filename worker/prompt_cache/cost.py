"""Whether to read a prompt's blocks from disk, or to compute them: what is faster, as measured."""

from __future__ import annotations

from typing import Final

from protocol.prompt_store import Measured

_NOTHING: Final = Measured()
# How much of the last measurement a speed is: neither a page cache that happened to be warm nor a
# disk that was busy once decides alone.
_WEIGHT: Final = 0.3
# So many prompts are computed before reading is tried again: a disk that was slow once would be for
# ever, as only reading tells its speed.
_TRIED_AGAIN: Final = 15
# Others are told of a speed that has changed by so much.
_NEWS: Final = 0.25
# Less says more about the overhead than about the speed.
_LEAST_BYTES: Final = 1_000_000
_LEAST_TOKENS: Final = 64


class Speeds:
    """Of reading in bytes and of prefill in tokens, a second; None before the first measurement."""

    def __init__(self, known: Measured = _NOTHING) -> None:
        """`known` is what an earlier worker has measured."""
        self.read_bytes_per_s = known.read_bytes_per_s
        self.prefill_tokens_per_s = known.prefill_tokens_per_s
        self._told = known
        self._computed = 0

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
        worth = bytes_ / self.read_bytes_per_s < tokens / self.prefill_tokens_per_s
        return worth or self._computed >= _TRIED_AGAIN

    def count(self, *, read: bool) -> None:
        """A prompt of which blocks are stored is read, or it is computed."""
        self._computed = 0 if read else self._computed + 1

    def take_news(self) -> Measured | None:
        """What is worth telling others since the last call."""
        now = Measured(self.read_bytes_per_s, self.prefill_tokens_per_s)
        if not any(_differs(*each) for each in zip(now, self._told, strict=True)):
            return None
        self._told = now
        return now


def _differs(now: float | None, told: float | None) -> bool:
    if now is None or told is None:
        return now is not told
    return abs(now - told) > _NEWS * told


def _blend(before: float | None, measured: float) -> float:
    return measured if before is None else before + _WEIGHT * (measured - before)
