"""Whether a worker floods. No I/O; the caller brings the time, in seconds."""

from __future__ import annotations

from typing import Final

# An engine sends one message a step, and no model makes a thousand steps a second.
MESSAGES_PER_S: Final = 5000
# The longest thing that it has to say is prompts, four bytes a token.
BYTES_PER_S: Final = 64_000_000


class FloodGauge:
    """Counts what one worker sends within each second."""

    def __init__(self) -> None:
        self._window_began = float("-inf")
        self._messages = 0
        self._bytes = 0

    def count(self, now: float, size_bytes: int) -> str | None:
        """Note a message; what is wrong if it is one too many."""
        if now - self._window_began >= 1.0:
            self._window_began = now
            self._messages = self._bytes = 0
        self._messages += 1
        self._bytes += size_bytes
        if self._messages > MESSAGES_PER_S:
            return f"more than {MESSAGES_PER_S} messages within a second"
        if self._bytes > BYTES_PER_S:
            return f"more than {BYTES_PER_S // 1_000_000} MB of messages within a second"
        return None
