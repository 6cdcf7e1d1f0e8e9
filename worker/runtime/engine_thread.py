"""The one thread that makes all calls of MLX: imports, load, steps, release.

This module is light to import, because the thread that talks to the gateway needs it at once, and
MLX and mlx-lm take seconds.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from protocol.answers import RequestFailed
from protocol.life import ClearPromptCache, Limit, Load, MlxMemory, Ready
from protocol.message import Message
from protocol.requests import Embed, Generate

if TYPE_CHECKING:
    from worker.engines.sequence import Sequence, Token
    from worker.runtime.prompts import Prepared
    from worker.vectors.jobs import VectorJob

logger = logging.getLogger("worker")

# The least time between two messages. No screen shows more than sixty a second, and each message
# wakes threads here, the gateway and every client. A slower engine is not delayed.
_BETWEEN_S: Final = 1 / 60
# Events that may wait for the sender, most of them steps. If there are more, the engine waits.
_MOST_EVENTS: Final = 256
EngineEvent: TypeAlias = (
    "Message | ModelReady | EngineStep | Prepared | VectorJob | GivenUp | RankGone | EngineEnded"
)
EngineCommand: TypeAlias = (
    "Load | Sequence | VectorJob | RemoveRequests | Limit | ClearPromptCache | Look | FinishEngine"
)


class EngineThread:
    """Commands in, events out."""

    def __init__(self, work: Callable[[EngineThread], None], wake: Callable[[], None]) -> None:
        """The thread does `work` and ends with it. It calls `wake` after each event."""
        self.figures = EngineFigures()
        self.throttle = OutputThrottle()
        # Prompts that are being tokenized; written by the sender.
        self.arriving = 0
        self._work = work
        self._wake = wake
        self._commands: queue.SimpleQueue[EngineCommand] = queue.SimpleQueue()
        self._events: queue.Queue[EngineEvent] = queue.Queue(_MOST_EVENTS)
        self._finishing = threading.Event()
        self._loading = threading.Event()
        # A daemon, so that a stop during the imports needn't wait for them.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def may_hold_model(self) -> bool:
        return self._loading.is_set()

    def start(self) -> None:
        self._thread.start()

    def post(self, command: EngineCommand) -> None:
        if isinstance(command, Load):
            self._loading.set()
        self._commands.put(command)

    def finish(self) -> None:
        """Ask the thread to release the model and end. Works during a load, too."""
        self._finishing.set()
        self._commands.put(FinishEngine())

    def next_event(self) -> EngineEvent | None:
        try:
            return self._events.get_nowait()
        except queue.Empty:
            return None

    def emit(self, event: EngineEvent) -> None:
        """Hand an event to the sender, from any thread. Waits while the sender has too many."""
        self._events.put(event)
        self._wake()

    def emit_step(self, step: EngineStep) -> None:
        """Hand a step to the sender, and wake it if it would look too late."""
        self._events.put(step)
        if self.throttle.wakes(time.monotonic(), awaited=any(each.awaited for each in step.tokens)):
            self._wake()

    def next_command(self, *, wait: bool, at_most_s: float | None = None) -> EngineCommand | None:
        try:
            return self._commands.get(wait, at_most_s)
        except queue.Empty:
            return None

    def commands(self) -> Iterator[EngineCommand]:
        """The commands that have come by now."""
        for _ in range(self._commands.qsize()):
            command = self.next_command(wait=False)
            if command is not None:
                yield command

    @property
    def is_wanted(self) -> bool:
        """There are commands, or a prompt that is being tokenized will be one soon."""
        return self.arriving > 0 or not self._commands.empty() or self._finishing.is_set()

    def should_finish(self) -> bool:
        return self._finishing.is_set()

    def note_step(self, active: int, waiting: int) -> None:
        """Note progress: a decoding step, or a chunk of a prompt."""
        self.figures.step += 1
        self.figures.last_step_at = time.monotonic()
        self.figures.active = active
        self.figures.waiting = waiting

    def _run(self) -> None:
        failed = False
        try:
            self._work(self)
        except Exception:
            traceback.print_exc()
            failed = True
        self.emit(EngineEnded(failed))


@dataclass
class EngineFigures:
    """Written by the engine thread, read by the sender. Each field is consistent by itself."""

    step: int = 0
    last_step_at: float | None = None
    active: int = 0
    waiting: int = 0
    memory: MlxMemory = field(default_factory=MlxMemory)
    prompt_cache_bytes: int = 0


class OutputThrottle:
    """Joins several steps of a fast engine into one message, for all streams together.

    The engine's thread calls `wakes`, and the sender's thread calls the rest. Times are seconds on
    a clock that both threads read.
    """

    def __init__(self) -> None:
        self._next_at = 0.0
        self._looks = False

    def note_look(self, now: float) -> None:
        """The sender is about to take all steps that there are."""
        if now >= self._next_at:
            self._looks = False

    def note_sent(self, now: float) -> None:
        """The sender has sent steps, and will look for more after the pause."""
        self._next_at = now + _BETWEEN_S
        self._looks = True

    def left_s(self, now: float) -> float | None:
        """How long until the sender looks by itself; None: it looks only when it is woken."""
        return max(0.0, self._next_at - now) if self._looks else None

    def wakes(self, now: float, *, awaited: bool) -> bool:
        """Whether a new step wakes the sender. A client waits for an `awaited` step, which is sent
        at once.
        """
        return awaited or now >= self._next_at


@dataclass(frozen=True)
class ModelReady:
    """The model answers. `prepare` is called by threads of the sender, which must not import
    MLX.
    """

    ready: Ready
    prepare: Callable[[Generate | Embed], Prepared | VectorJob | RequestFailed]


@dataclass(frozen=True)
class EngineStep:
    step: int
    tokens: list[Token]


@dataclass(frozen=True)
class GivenUp:
    """A sequence that was taken out, because it waited for more memory than there can be, or can't
    go on.
    """

    failure: RequestFailed


@dataclass(frozen=True)
class EngineEnded:
    """The engine thread has ended and holds nothing. `failed` if an exception ended it."""

    failed: bool


@dataclass(frozen=True)
class RankGone:
    """Another rank of the model is gone, and nothing can be computed without it."""

    rank: int


@dataclass(frozen=True)
class RemoveRequests:
    request_ids: tuple[str, ...]


@dataclass(frozen=True)
class Look:
    """Blocks of a prompt have been read from disk: the engine may go on."""


@dataclass(frozen=True)
class FinishEngine:
    """Release the model and end the thread."""


if sys.platform == "darwin":
    _PRIO_DARWIN_THREAD = 3
    _PRIO_DARWIN_BG = 0x1000

    def _lower_this_thread() -> None:
        os.setpriority(_PRIO_DARWIN_THREAD, 0, _PRIO_DARWIN_BG)

else:
    _LOWEST = 19

    def _lower_this_thread() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)


def import_at_low_priority(name: str) -> None:
    """Import a module on a thread of low priority, and wait for it. Errors are left to the later
    import of the same module.
    """

    def run() -> None:
        try:
            _lower_this_thread()
            importlib.import_module(name)
        except Exception:
            logger.debug("%s could not be imported beforehand", name, exc_info=True)

    thread = threading.Thread(target=run, name="imports", daemon=True)
    thread.start()
    thread.join()
