"""What fails inside the gateway itself: logged once in a while, and kept for /health."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final

from msgspec import Struct

logger = logging.getLogger(__name__)

# A fault that comes back is told again after so long; one that doesn't is forgotten.
_SAID_AGAIN_S: Final = 60.0
_REMEMBERED_S: Final = 600.0
_KINDS: Final = 50
_LONGEST_REASON: Final = 500


class Fault(Struct, frozen=True):
    """`at` is when it came last, a Unix time in seconds; `times` how often since it was not
    remembered.
    """

    what: str
    reason: str
    at: float
    times: int


class Faults:
    """Faults by their kind: what failed, by which exception."""

    def __init__(self) -> None:
        self._faults: dict[tuple[str, str], Fault] = {}
        self._said_at: dict[tuple[str, str], float] = {}

    def note(self, what: str, error: BaseException, now: float) -> bool:
        """Whether it is to be said. `now` is a Unix time."""
        kind = (what, type(error).__name__)
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        # The newest goes to the end.
        before = self._faults.pop(kind, None)
        times = before.times if before is not None and _is_recent(before.at, now) else 0
        self._faults[kind] = Fault(what, reason, now, times + 1)
        while len(self._faults) > _KINDS:
            oldest = next(iter(self._faults))
            del self._faults[oldest]
            self._said_at.pop(oldest, None)
        if times and now - self._said_at.get(kind, 0.0) < _SAID_AGAIN_S:
            return False
        self._said_at[kind] = now
        return True

    def recent(self, now: float) -> list[Fault]:
        """Those of the last ten minutes, the newest last."""
        return [each for each in self._faults.values() if _is_recent(each.at, now)]

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take note of everything that fails on the loop and has nobody else who would."""
        loop.set_exception_handler(self._failed)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or "transport" in context:
            # Of a client's connection, or no failure.
            loop.default_exception_handler(context)
            return
        # The loop's own sentences have addresses in them.
        what = "a callback of the event loop" if "handle" in context else context["message"]
        if self.note(what, error, time.time()):
            logger.error("%s", context["message"], exc_info=error)


def _is_recent(at: float, now: float) -> bool:
    """What comes later than now was noted by a clock that was set back since."""
    return 0.0 <= now - at < _REMEMBERED_S
