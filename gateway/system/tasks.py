"""The event loop's work: tasks that end with their owner, a record of faults, the loop's lag."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine
from itertools import accumulate
from typing import Any, Final

from msgspec import Struct


class Tasks:
    """The background tasks of one owner."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def repeat(self, turn: Callable[[], Awaitable[None]], name: str, every_s: float) -> None:
        """Call `turn` again and again, each time `every_s` after its end, also after failures."""
        self.start(self._repeat(turn, name, every_s), name)

    def attempt(self, step: Callable[[], object], name: str) -> None:
        """Call `step`. Report an exception instead of raising it."""
        try:
            step()
        except Exception as error:
            self._tell(f"{self._owner}: {name}", error)

    async def cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, turn: Callable[[], Awaitable[None]], name: str, every_s: float) -> None:
        while True:
            try:
                await turn()
            except Exception as error:
                self._tell(f"{self._owner}: {name}", error)
            await asyncio.sleep(every_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._tell(task.get_name(), error)

    def _tell(self, what: str, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"{what} failed", "exception": error}
        )


class Histogram:
    """A histogram for one thread. prometheus_client's histogram takes a lock and walks its buckets
    for each value. That takes ten times as long, too long for every token.
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds` ascend. Each bound is the highest value of its bucket; one more bucket has the
        values beyond the last bound. `sum` is the sum of all values.
        """
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[float, int]]:
        """Each bound with the number of values up to this bound. The last bound is infinity."""
        return list(zip((*self._bounds, math.inf), accumulate(self._counts), strict=True))


_EVERY_S: Final = 0.25
LAG_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopLag:
    """How late the event loop is: `late_s` gets a value every quarter of a second."""

    def __init__(self) -> None:
        self.late_s = Histogram(LAG_S)

    def watch(self, tasks: Tasks) -> None:
        """Measure from now on."""
        tasks.repeat(self._look, "lag of the event loop", 0.0)

    async def _look(self) -> None:
        # The loop's own clock would not do: it stands still while the loop is busy, and goes on
        # while the machine sleeps.
        due = time.monotonic() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        self.late_s.observe(max(0.0, time.monotonic() - due))


logger = logging.getLogger(__name__)

# A fault that occurs again and again is logged once in this time.
_LOGGED_AGAIN_S: Final = 60.0
# A fault that hasn't occurred again within this time is forgotten.
_REMEMBERED_S: Final = 600.0
_KINDS: Final = 50
_LONGEST_REASON: Final = 500


class Fault(Struct, frozen=True):
    """A fault that is remembered. `at` is the Unix time, in seconds, of its last occurrence, and
    `times` counts the occurrences since the first that is remembered.
    """

    what: str
    reason: str
    at: float
    times: int


class Faults:
    """Faults by their kind: the work that failed, and the class of its exception."""

    def __init__(self) -> None:
        self._faults: dict[tuple[str, str], Fault] = {}
        self._logged_at: dict[tuple[str, str], float] = {}

    def record(self, what: str, error: BaseException, now: float) -> bool:
        """Remember a fault. Return whether to log it. `now` is a Unix time."""
        kind = (what, type(error).__name__)
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        # The newest fault is the last.
        before = self._faults.pop(kind, None)
        times = before.times if before is not None and _is_recent(before.at, now) else 0
        self._faults[kind] = Fault(what, reason, now, times + 1)
        while len(self._faults) > _KINDS:
            oldest = next(iter(self._faults))
            del self._faults[oldest]
            self._logged_at.pop(oldest, None)
        if times and now - self._logged_at.get(kind, 0.0) < _LOGGED_AGAIN_S:
            return False
        self._logged_at[kind] = now
        return True

    def recent(self, now: float) -> list[Fault]:
        """The faults of the last ten minutes, the newest last."""
        return [fault for fault in self._faults.values() if _is_recent(fault.at, now)]

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Record every failure on the loop that no other code handles."""
        loop.set_exception_handler(self._failed)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or "transport" in context:
            # The context is about a client's connection, or about no failure.
            loop.default_exception_handler(context)
            return
        # The loop's own messages have addresses of objects in them, so each message would differ.
        what = "a callback of the event loop" if "handle" in context else context["message"]
        if self.record(what, error, time.time()):
            logger.error("%s", context["message"], exc_info=error)


def _is_recent(at: float, now: float) -> bool:
    """Whether a fault is still remembered. A fault after `now` isn't: the clock was set back."""
    return 0.0 <= now - at < _REMEMBERED_S
