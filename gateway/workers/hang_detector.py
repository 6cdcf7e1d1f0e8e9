"""Whether a worker hangs. No I/O; the caller passes the time, in seconds. Unanswered recalls of
memory are judged in `gateway.memory.admission_round`.

`gateway/models/recovery.py` tells the whole way, from the suspicion to the next worker.
"""

from __future__ import annotations

from typing import Final

# If the time between two calls of `judge` is longer than this part of the shorter timeout, this
# process was stopped or asleep.
_ABSENCE: Final = 0.25
_SHORTEST_ABSENCE_S: Final = 0.5
# Workers send a heartbeat every second: a silence shorter than two seconds proves nothing.
_SHORTEST_SILENCE_S: Final = 2.0


class HangDetector:
    """Judges one worker, which has a model or is to get one, by two signs of life.

    Heartbeats come from a thread that never computes. When they stop, the process is stopped or its
    I/O is stuck. Progress comes from the engine. When it stops although there is work, the GPU is
    wedged. Each chunk of a prompt is progress, and takes a limited time, so a long prompt is no
    hang.
    """

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
        """Note a message of any kind."""
        self._heard_at = now

    def progressed(self, now: float) -> None:
        """Note that the engine did something for a request."""
        self._heard_at = self._progress_at = now

    def stepped(self, now: float, step: int) -> None:
        """Note a heartbeat with the engine's step counter."""
        self._heard_at = now
        if step != self._step:
            self._step = step
            self._progress_at = now

    def silence_s(self, now: float) -> float:
        return now - self._heard_at

    def judge(self, now: float, *, has_work: bool) -> str | None:
        """Why the worker counts as hung; None: it doesn't. To be called a few times a second."""
        absent = now - self._judged_at > self._absence_s
        self._judged_at = now
        if absent:
            # Messages that came during the absence are still unread.
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
