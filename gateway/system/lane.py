"""Blocking calls beside the event loop: each owner has a lane, and a call that hangs stays in it.

Not asyncio's default executor: its few threads are everybody's, so that some files on a dead mount
would hold up whoever needs one, and the end of the process waits for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from gateway.system.clock.countdown import Countdown
from gateway.system.threads import start_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")


class HangsError(OSError):
    """No answer in time; the text says of what, and how long was waited."""


class Lane:
    """Calls one after the other, on one thread at most, which ends when none is left.

    As long as a call hangs that was given up, others are refused at once: there is never a second
    thread for what doesn't answer.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._works = False
        self._call_began = 0.0
        self._hangs = False

    async def run(self, call: Callable[[], T], deadline_s: float, what: str) -> T:
        """What the call returns, or raises. The time in the lane counts; `what` is for the error.

        Raises:
            HangsError: there is no answer within the deadline, or an earlier call still hangs.
            OSError: no thread can be started.
        """
        with self._lock:
            if self._hangs:
                seconds = time.monotonic() - self._call_began
                raise HangsError(f"{what} has not answered for {seconds:.0f} s")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._add(lambda: _answer(loop, answer, call))
        try:
            self._begin()
        except OSError:
            with self._lock:
                self._calls.pop()
            raise
        try:
            countdown = Countdown(deadline_s, loop.time())
            while not answer.done() and countdown.left_s(loop.time()) > 0.0:
                await asyncio.wait({answer}, timeout=countdown.pause_s(loop.time()))
            if answer.done():
                return answer.result()
        finally:
            if not answer.cancel() and not answer.cancelled():
                # Else asyncio would miss somebody who has seen it.
                answer.exception()
        with self._lock:
            self._hangs = self._works
        raise HangsError(f"{what} did not answer within {deadline_s:g} s")

    def soon(self, call: Callable[[], None]) -> None:
        """Have it done after the calls that are in the lane, also after one that hangs. What it
        raises is logged.
        """
        self._add(call)
        # Without a thread it is done with the next call.
        with contextlib.suppress(OSError):
            self._begin()

    def _add(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.append(call)

    def _begin(self) -> None:
        with self._lock:
            if self._works:
                return
            self._works = True
        try:
            start_thread(self._work, self._name)
        except OSError:
            with self._lock:
                self._works = False
            raise

    def _work(self) -> None:
        while True:
            with self._lock:
                self._hangs = False
                if not self._calls:
                    self._works = False
                    return
                call = self._calls.popleft()
                self._call_began = time.monotonic()
            try:
                call()
            except Exception:
                logger.exception("A call of %s failed", self._name)


def _answer(
    loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T], call: Callable[[], T]
) -> None:
    if answer.cancelled():
        return
    result: T | None = None
    failure: BaseException | None = None
    try:
        result = call()
    except BaseException as error:
        failure = error

    def settle() -> None:
        if answer.done():
            return
        if failure is None:
            answer.set_result(result)  # type: ignore[arg-type]
        else:
            answer.set_exception(failure)

    # The loop may be closed by now, and nobody waits.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)
