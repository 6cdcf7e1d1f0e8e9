"""Where models are, asked of disks that may not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final

from gateway.system.threads import start_thread

# For all places together: they are asked side by side. A disk that sleeps takes seconds.
_ANSWER_S: Final = 10.0


class Places:
    """Asks each place on a thread of its own, and one that hangs only once."""

    def __init__(self) -> None:
        # With the time when it was asked.
        self._asked: dict[str, tuple[float, Future[str]]] = {}

    def locate(self, looks: Mapping[str, Callable[[], str]]) -> dict[str, str | ValueError]:
        """What each look gave, by the path that it looks at, or the sentence for the operator."""
        for path, look in looks.items():
            if path not in self._asked or self._asked[path][1].done():
                self._asked[path] = (time.monotonic(), _ask(path, look))
        return {path: self._answer(path) for path in looks}

    def _answer(self, path: str) -> str | ValueError:
        began, answer = self._asked[path]
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
