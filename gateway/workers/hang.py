"""Whether a worker hangs. No I/O; the caller brings the time.

Two clocks. The heartbeat comes from a thread that never computes: when it stops, the process is
stopped or its I/O is stuck. Progress comes from the engine: when it stops although there is work,
the GPU is wedged. A chunk of prefill is progress and its length is bounded in time, so a long
prompt is none.
"""

from __future__ import annotations

from typing import Final

# A caller that comes later than this part of the shorter timeout was itself stopped or asleep.
_ABSENCE: Final = 0.25
_SHORTEST_ABSENCE_S: Final = 0.5
# Workers give a sign of life every second: less than two of them prove nothing.
_SHORTEST_SILENCE_S: Final = 2.0


class HangDetector:
    """Judges one worker, once it has something to lose. Times in seconds, on one clock."""

    def __init__(self, now: float, heartbeat_timeout_s: float, stall_timeout_s: float) -> None:
        self.set_timeouts(heartbeat_timeout_s, stall_timeout_s)
        self._heard_at = self._progress_at = self._judged_at = now
        self._step: int | None = None

    def set_timeouts(self, heartbeat_timeout_s: float, stall_timeout_s: float) -> None:
        self._heartbeat_timeout_s = max(heartbeat_timeout_s, _SHORTEST_SILENCE_S)
        self._stall_timeout_s = stall_timeout_s
        shorter_s = min(heartbeat_timeout_s, stall_timeout_s)
        self._absence_s = max(_SHORTEST_ABSENCE_S, shorter_s * _ABSENCE)

    def heard(self, now: float) -> None:
        """Any message came."""
        self._heard_at = now

    def progressed(self, now: float) -> None:
        """The engine did something for a request."""
        self._heard_at = self._progress_at = now

    def stepped(self, now: float, step: int) -> None:
        """A heartbeat with the engine's step counter."""
        self._heard_at = now
        if step != self._step:
            self._step = step
            self._progress_at = now

    def silence_s(self, now: float) -> float:
        return now - self._heard_at

    def judge(self, now: float, *, has_work: bool) -> str | None:
        """Why the worker is considered hung, or None. To be called a few times a second."""
        absent = now - self._judged_at > self._absence_s
        self._judged_at = now
        if absent:
            # What the worker said meanwhile is still unread.
            self._heard_at = self._progress_at = now
            return None
        if not has_work:
            self._progress_at = now
        if now - self._heard_at >= self._heartbeat_timeout_s:
            return (
                f"no heartbeat for {now - self._heard_at:.1f} s (workers.heartbeat_timeout_s is "
                f"{self._heartbeat_timeout_s:g}): the process is stopped or stuck"
            )
        if now - self._progress_at >= self._stall_timeout_s:
            return (
                f"no engine step for {now - self._progress_at:.1f} s although there is work "
                f"(workers.stall_timeout_s is {self._stall_timeout_s:g})"
            )
        return None
