"""Where models are, asked of disks that may not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final, NamedTuple

from gateway.system.threads import start_thread

# For all places together: they are asked side by side. A disk that sleeps takes seconds.
_ANSWER_S: Final = 10.0


class Sought(NamedTuple):
    """`what` is looked for at `path`, by the name of its key."""

    what: str
    path: str


class Places:
    """Asks each place on a thread of its own, and one that hangs only once."""

    def __init__(self) -> None:
        # With the time when it was asked.
        self._asked: dict[Sought, tuple[float, Future[str]]] = {}

    def locate(self, looks: Mapping[Sought, Callable[[], str]]) -> dict[Sought, str | ValueError]:
        """What each look gave, or the sentence for the operator."""
        for sought, look in looks.items():
            if sought not in self._asked or self._asked[sought][1].done():
                self._asked[sought] = (time.monotonic(), _ask(sought.path, look))
        return {sought: self._answer(sought) for sought in looks}

    def _answer(self, sought: Sought) -> str | ValueError:
        path = sought.path
        began, answer = self._asked[sought]
        try:
            return answer.result(max(0.0, began + _ANSWER_S - time.monotonic()))
        except TimeoutError:
            seconds = time.monotonic() - began
            return ValueError(
                f"{path} did not answer within {seconds:.0f} s: is it on a mount that has died?"
            )
        except OSError as error:
            return ValueError(f"{path} can't be looked at: {error}.")
        except ValueError as error:
            return error


def _ask(path: str, look: Callable[[], str]) -> Future[str]:
    answer: Future[str] = Future()

    def work() -> None:
        try:
            answer.set_result(look())
        except BaseException as error:
            answer.set_exception(error)

    try:
        start_thread(work, f"locate {path}")
    except OSError as error:
        answer.set_exception(error)
    return answer
