"""Blocking calls on threads beside the event loop: a call that hangs blocks only its own lane.

asyncio's default executor would not do: all owners share its few threads, so some files on a dead
mount would hold up every other call, and the process can't end before all these threads do.
`Inquiries` are for callers without an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from gateway.system.clock import Countdown


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread.

    Raises:
        OSError: the system gives no thread, for want of memory or because of a limit of processes.
            `threading` raises a RuntimeError, which callers that expect OSError would miss.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise BlockingIOError(errno.EAGAIN, f"no thread can be started: {error}") from error
    return thread


logger = logging.getLogger(__name__)

T = TypeVar("T")


class HangsError(OSError):
    """A call did not return in time. The text names the call and the length of the wait."""


class Lane:
    """Makes calls one after the other on one thread, which ends when no call is left.

    `run` gives up a call at its deadline. Until that call returns, `run` refuses other calls at
    once. So a lane whose disk or device doesn't answer never takes a second thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._works = False
        self._call_began = 0.0
        self._hangs = False

    async def run(self, call: Callable[[], T], deadline_s: float, what: str) -> T:
        """Return the result of the call, or raise its exception. The deadline includes the wait for
        earlier calls. `what` names the call in error messages.

        Raises:
            HangsError: the call did not return within the deadline, or an earlier call still hangs.
            OSError: no thread can be started.
        """
        with self._lock:
            if self._hangs:
                seconds = time.monotonic() - self._call_began
                raise HangsError(f"{what} has not answered for {seconds:.0f} s")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        queued = partial(_answer, loop, answer, call)
        self._add(queued)
        try:
            self._start_work()
        except OSError:
            with self._lock, contextlib.suppress(ValueError):
                # A thread that another call began may have taken this one.
                self._calls.remove(queued)
            raise
        try:
            countdown = Countdown(deadline_s, loop.time())
            while not answer.done() and countdown.left_s(loop.time()) > 0.0:
                await asyncio.wait({answer}, timeout=countdown.pause_s(loop.time()))
            if answer.done():
                return answer.result()
        finally:
            if not answer.cancel() and not answer.cancelled():
                # Read the exception, or asyncio logs that it was never retrieved.
                answer.exception()
        with self._lock:
            self._hangs = self._works
        raise HangsError(f"{what} did not answer within {deadline_s:g} s")

    def soon(self, call: Callable[[], None]) -> None:
        """Queue the call and return at once, even if an earlier call hangs. If the call raises, the
        exception is logged.
        """
        self._add(call)
        # If no thread can be started, the call waits until a later call starts one.
        with contextlib.suppress(OSError):
            self._start_work()

    def _add(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.append(call)

    def _start_work(self) -> None:
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

    def deliver() -> None:
        if answer.done():
            return
        if failure is None:
            answer.set_result(result)  # type: ignore[arg-type]
        else:
            answer.set_exception(failure)

    # The loop may be closed by now.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(deliver)


K = TypeVar("K", bound=Hashable)


class Inquiries(Generic[K, T]):
    """Blocking calls by key, each on its own thread. While a call hangs, it is not made again."""

    def __init__(self) -> None:
        # For each key: when its call began, and the answer of the call.
        self._asked: dict[K, tuple[float, Future[T]]] = {}

    def ask(self, what: K, call: Callable[[], T], name: str) -> None:
        """Begin the call, unless an earlier call for `what` still runs. `name` is the thread's."""
        if what not in self._asked or self._asked[what][1].done():
            self._asked[what] = (time.monotonic(), _ask(call, name))

    def answer(self, what: K, within_s: float) -> T:
        """Return the result of the call, or raise its exception. Blocks until `within_s` seconds
        after `ask` began the call.

        Raises:
            TimeoutError: the call has not returned by then.
            OSError: no thread can be started.
        """
        began, answer = self._asked[what]
        return answer.result(max(0.0, began + within_s - time.monotonic()))

    def age_s(self, what: K) -> float:
        """Seconds since `ask` began the call."""
        return time.monotonic() - self._asked[what][0]


def _ask(call: Callable[[], T], name: str) -> Future[T]:
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    try:
        start_thread(work, name)
    except OSError as error:
        answer.set_exception(error)
    return answer
