"""The threads that make requests ready for the engine. The sharers of a worker have turns there."""

from __future__ import annotations

import logging
import threading
from bisect import insort
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from protocol.answers import RequestFailed
from protocol.requests import ChatPrompt, Embed, Generate, TextPrompt, TokenPrompt
from worker.engines.turns import Turns
from worker.vectors.jobs import VectorJob

if TYPE_CHECKING:
    from worker.runtime.prompts import PreparedRequest

logger = logging.getLogger("worker")
# A sharer of the model has this many threads at most. One thread more is there for another.
_TOKENIZER_THREADS: Final = 2
_COMPILER_THREADS: Final = 2


@dataclass(order=True)
class _Work:
    """Work that waits for a thread. Priorities are lower for what is to be done first."""

    priority: int
    number: float
    serial: int
    sharer: str = field(compare=False)
    run: Callable[[], None] = field(compare=False)


class FairLane:
    """Threads that do pieces of work by priority, and pieces of one priority in the turns of their
    sharers. No sharer has more than `most` threads at a time. So with one more thread another
    sharer needn't wait for the end of a long piece.
    """

    def __init__(self, threads: int, most: int, name: str) -> None:
        self._most = most
        self._threads = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()
        self._turns = Turns()
        self._waiting: list[_Work] = []
        self._running: Counter[str] = Counter()
        self._serial = 0
        # Threads that found only work of sharers that have enough threads.
        self._idle = 0

    def submit(
        self, run: Callable[[], None], sharer: str, share: int, priority: int, cost: float
    ) -> None:
        """Have `run` called on a thread. `cost` is in any unit, the same for all pieces."""
        with self._lock:
            self._serial += 1
            number = self._turns.reserve(sharer, share, cost)
            insort(self._waiting, _Work(-priority, number, self._serial, sharer, run))
        self._threads.submit(self._run_next)

    def _run_next(self) -> None:
        with self._lock:
            free = (work for work in self._waiting if self._running[work.sharer] < self._most)
            work = next(free, None)
            if work is None:
                self._idle += 1
                return
            self._waiting.remove(work)
            self._turns.start(work.number)
            self._running[work.sharer] += 1
        try:
            work.run()
        except Exception:
            logger.exception("A piece of work failed")
        with self._lock:
            self._running -= Counter([work.sharer])
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._threads.submit(self._run_next)


class Preparation:
    """Makes requests ready for the engine on threads of its own. These threads call `emit` with
    each outcome.
    """

    def __init__(self, emit: Callable[[PreparedRequest | VectorJob | RequestFailed], None]) -> None:
        self._emit = emit
        self._tokenizers = FairLane(_TOKENIZER_THREADS + 1, _TOKENIZER_THREADS, "tokenizer")
        # For requests with pictures, one at a time because decoded pictures are large. Requests
        # without pictures needn't wait for them.
        self._decoder = FairLane(1, 1, "pictures")
        # For requests with a grammar, whose compilation may take half a second. Other requests
        # needn't wait for it.
        self._compilers = FairLane(_COMPILER_THREADS + 1, _COMPILER_THREADS, "compiler")

    def submit(
        self,
        prepare: Callable[[Generate | Embed], PreparedRequest | VectorJob | RequestFailed],
        task: Generate | Embed,
    ) -> None:
        self._lane_for(task).submit(
            partial(self._prepare, prepare, task),
            task.sharer,
            task.share,
            task.priority,
            size_of(task),
        )

    def _lane_for(self, task: Generate | Embed) -> FairLane:
        # A request for vectors has no constraint.
        if isinstance(task, Embed):
            return self._tokenizers
        if isinstance(task.prompt, ChatPrompt) and task.prompt.pictures:
            return self._decoder
        free = task.constraint is None and task.tools is None
        return self._tokenizers if free else self._compilers

    def _prepare(
        self,
        prepare: Callable[[Generate | Embed], PreparedRequest | VectorJob | RequestFailed],
        task: Generate | Embed,
    ) -> None:
        try:
            outcome = prepare(task)
        except Exception:
            logger.exception("Tokenizing request %s failed", task.request_id)
            outcome = RequestFailed(
                request_id=task.request_id,
                code="internal_error",
                message="The prompt could not be tokenized; the worker's log has the traceback.",
            )
        self._emit(outcome)


def size_of(task: Generate | Embed) -> int:
    """About how many characters are to be tokenized."""
    if isinstance(task, Embed):
        return 1 + sum(map(_characters, task.inputs))
    if isinstance(task.prompt, ChatPrompt):
        return 1 + sum(len(message.content) for message in task.prompt.messages)
    return 1 + _characters(task.prompt)


def _characters(prompt: TextPrompt | TokenPrompt) -> int:
    return len(prompt.text) if isinstance(prompt, TextPrompt) else 0
