"""Whether reading stored blocks is faster than computing them."""

from __future__ import annotations

from typing import Final

from protocol.prompt_store.index import Speeds

_NOTHING: Final = Speeds()
# The weight of the last measurement in a speed. A single read from a warm page cache or a busy disk
# must not decide.
_WEIGHT: Final = 0.3
# If so many prompts in a row were computed although blocks were stored, reading is tried again.
# Only reading tells the speed of a disk, so a disk that was slow once would otherwise be slow for
# ever.
_TRIED_AGAIN: Final = 15
# A speed is noted for later workers when it has changed by this share.
_NEWS: Final = 0.25
# A smaller read or chunk tells more about the overhead than about the speed.
_LEAST_BYTES: Final = 1_000_000
_LEAST_TOKENS: Final = 64


class MeasuredSpeeds:
    """The speeds of reading, in bytes per second, and of prefill, in tokens per second. A speed is
    None before its first measurement. Also the seconds of steps, as they were measured at rest.
    """

    def __init__(self, known: Speeds = _NOTHING) -> None:
        """`known` are the speeds of an earlier worker."""
        self.read_bytes_per_s = known.read_bytes_per_s
        self.prefill_tokens_per_s = known.prefill_tokens_per_s
        self.step_seconds = known.step_seconds
        self._reported = known
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
        """Whether to read `bytes_` bytes instead of computing `tokens` tokens. True if a speed is
        unknown, or if reading wasn't tried for long.
        """
        if self.read_bytes_per_s is None or self.prefill_tokens_per_s is None:
            return tokens > 0
        worth = bytes_ / self.read_bytes_per_s < tokens / self.prefill_tokens_per_s
        return worth or self._computed >= _TRIED_AGAIN

    def count(self, *, read: bool) -> None:
        """Count a prompt that has stored blocks. With `read` they are read, otherwise computed."""
        self._computed = 0 if read else self._computed + 1

    def changed_speeds(self) -> Speeds | None:
        """The speeds, if they have changed much since the last call."""
        now = Speeds(self.read_bytes_per_s, self.prefill_tokens_per_s, self.step_seconds)
        if now.step_seconds == self._reported.step_seconds and not any(
            _differs(*figures) for figures in zip(now[:2], self._reported[:2], strict=True)
        ):
            return None
        self._reported = now
        return now


def _differs(now: float | None, reported: float | None) -> bool:
    if now is None or reported is None:
        return now is not reported
    return abs(now - reported) > _NEWS * reported


def _blend(before: float | None, measured: float) -> float:
    return measured if before is None else before + _WEIGHT * (measured - before)
