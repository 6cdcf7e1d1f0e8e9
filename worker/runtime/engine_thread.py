"""The engine thread, the only thread that calls MLX: for imports, load, steps and release.

The other side of this thread is the sender, the main thread, which talks to the gateway. The sender
needs this module at once. So the module imports neither MLX nor mlx-lm, which take seconds.
"""

from __future__ import annotations

import ctypes
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
from protocol.message_base import Message
from protocol.requests import Embed, Generate

if TYPE_CHECKING:
    from worker.engines.sequence import Sequence, Token
    from worker.runtime.prompts import PreparedRequest
    from worker.vectors.jobs import VectorJob

logger = logging.getLogger("worker")

# The least time between two messages with tokens. No screen shows more than sixty changes a second,
# and each message wakes threads here, the gateway and every client. An engine with fewer steps a
# second is not delayed.
_BETWEEN_S: Final = 1 / 60
# The most events that may wait for the sender; most events are steps. Beyond this number the engine
# thread waits.
_MOST_EVENTS: Final = 256
EngineEvent: TypeAlias = (
    "Message | ModelReady | EngineStep | PreparedRequest | VectorJob | RequestFailure"
    " | RankLoss | EngineEnd"
)
EngineCommand: TypeAlias = (
    "Load | Sequence | VectorJob | RemoveRequests | Limit | ClearPromptCache | Look | FinishEngine"
)


class EngineThread:
    """The engine thread. The sender posts commands to it, and reads its events."""

    def __init__(self, work: Callable[[EngineThread], None], wake: Callable[[], None]) -> None:
        """The thread runs `work` and ends when that returns. `wake` wakes the sender for events."""
        self.figures = EngineFigures()
        self.throttle = OutputThrottle()
        # How many prompts are being tokenized. Only the sender writes this number.
        self.arriving = 0
        self._work = work
        self._wake = wake
        self._commands: queue.SimpleQueue[EngineCommand] = queue.SimpleQueue()
        self._events: queue.Queue[EngineEvent] = queue.Queue(_MOST_EVENTS)
        self._finishing = threading.Event()
        self._loading = threading.Event()
        # A daemon thread, so that a stop during the imports needn't wait for them.
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
        """Ask the thread to release the model and end. This also works during a load."""
        self._finishing.set()
        self._commands.put(FinishEngine())

    def next_event(self) -> EngineEvent | None:
        try:
            return self._events.get_nowait()
        except queue.Empty:
            return None

    def emit(self, event: EngineEvent) -> None:
        """Hand an event to the sender, from any thread. Waits while too many events wait."""
        self._events.put(event)
        self._wake()

    def emit_step(self, step: EngineStep) -> None:
        """Hand a step to the sender, and wake the sender if it would otherwise read the step too
        late.
        """
        self._events.put(step)
        if self.throttle.wakes(
            time.monotonic(), awaited=any(token.awaited for token in step.tokens)
        ):
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
        """Whether there is or soon will be work: a command waits, a prompt is being tokenized, or
        the thread has to finish.
        """
        return self.arriving > 0 or not self._commands.empty() or self._finishing.is_set()

    def should_finish(self) -> bool:
        return self._finishing.is_set()

    def record_step(self, active: int, waiting: int) -> None:
        """Count a step of the engine, which is a decoding step or a chunk of a prompt."""
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
        self.emit(EngineEnd(failed))


@dataclass
class EngineFigures:
    """Figures for heartbeats. The engine thread writes them, and the sender reads them without a
    lock, so two fields may be of different moments.
    """

    step: int = 0
    last_step_at: float | None = None
    active: int = 0
    waiting: int = 0
    memory: MlxMemory = field(default_factory=MlxMemory)
    prompt_cache_bytes: int = 0


class OutputThrottle:
    """Decides when the sender reads steps, so that one message has several steps of a fast engine.

    The engine thread calls `wakes`, and the sender calls the other methods. Times are seconds on a
    clock that both threads read.
    """

    def __init__(self) -> None:
        self._next_at = 0.0
        self._looks = False

    def record_look(self, now: float) -> None:
        """Note that the sender is about to read all steps that wait."""
        if now >= self._next_at:
            self._looks = False

    def record_sent(self, now: float) -> None:
        """Note that the sender has sent steps. The sender looks for more after `_BETWEEN_S`."""
        self._next_at = now + _BETWEEN_S
        self._looks = True

    def left_s(self, now: float) -> float | None:
        """Seconds until the sender looks by itself; None: it looks only when it is woken."""
        return max(0.0, self._next_at - now) if self._looks else None

    def wakes(self, now: float, *, awaited: bool) -> bool:
        """Whether a new step wakes the sender. An `awaited` step always does, since a client waits
        for it.
        """
        return awaited or now >= self._next_at


@dataclass(frozen=True)
class ModelReady:
    """The model can answer requests. The main thread and its helpers, which must not import MLX,
    call `prepare`.
    """

    ready: Ready
    prepare: Callable[[Generate | Embed], PreparedRequest | VectorJob | RequestFailed]


@dataclass(frozen=True)
class EngineStep:
    step: int
    tokens: list[Token]


@dataclass(frozen=True)
class RequestFailure:
    """A sequence was taken out of the engine, because it needs more memory than there can ever be,
    or because it can't go on.
    """

    failure: RequestFailed


@dataclass(frozen=True)
class EngineEnd:
    """The engine thread has ended and has released the model. `failed`: an exception ended it."""

    failed: bool


@dataclass(frozen=True)
class RankLoss:
    """Another rank of the model is gone. Without that rank the model can't compute."""

    rank: int


@dataclass(frozen=True)
class RemoveRequests:
    request_ids: tuple[str, ...]


@dataclass(frozen=True)
class Look:
    """Blocks of a prompt have been read from disk, and the engine may take them over."""


@dataclass(frozen=True)
class FinishEngine:
    """Release the model and end the thread."""


_LOWEST: Final = 19
# QOS_CLASS_UTILITY of <sys/qos.h>: it gives way to others, but unlike QOS_CLASS_BACKGROUND, and
# unlike PRIO_DARWIN_BG, it doesn't throttle the disk, which made an import of 3.4 s take 14.
_UTILITY: Final = 0x11


def lower_by_qos(library: str | None = None) -> None:
    """Give the calling thread the class of long work (pthread_set_qos_class_self_np of macOS).
    `library` None: that of the system.
    """
    ctypes.CDLL(library).pthread_set_qos_class_self_np(ctypes.c_uint(_UTILITY), ctypes.c_int(0))


def _lower_this_thread() -> None:
    if sys.platform == "darwin":
        lower_by_qos()
    else:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)


def import_at_low_priority(name: str) -> None:
    """Import a module on a thread of low priority, and wait for the thread. An error is only
    logged, since the later import of the same module raises it again.
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
