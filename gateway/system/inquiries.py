"""Questions to what may never answer, such as a disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from gateway.system.threads import start_thread

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Inquiries(Generic[K, T]):
    """Each is made on a thread of its own, and one that hangs only once."""

    def __init__(self) -> None:
        # With the time when it was asked.
        self._asked: dict[K, tuple[float, Future[T]]] = {}

    def ask(self, what: K, call: Callable[[], T], name: str) -> None:
        """Unless an earlier answer is still to come. `name` is the thread's."""
        if what not in self._asked or self._asked[what][1].done():
            self._asked[what] = (time.monotonic(), _ask(call, name))

    def answer(self, what: K, within_s: float) -> T:
        """What the call returns, or raises. The time counts from the asking; blocks.

        Raises:
            TimeoutError: there is no answer yet.
            OSError: no thread can be started.
        """
        began, answer = self._asked[what]
        return answer.result(max(0.0, began + within_s - time.monotonic()))

    def age_s(self, what: K) -> float:
        """How long ago it was asked."""
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
