"""The main thread of a worker: it takes the gateway's orders, and sends results to the gateway."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from protocol.answers import Embedded, Output, RequestFailed
from protocol.life import (
    ClearPromptCache,
    Drain,
    Heartbeat,
    Limit,
    Load,
    LoadFailed,
    RankLost,
    Stop,
)
from protocol.message import Message
from protocol.process import LEFT_ALONE, grace_s
from protocol.requests import Cancel, ChatPrompt, Embed, Generate, TextPrompt, TokenPrompt
from worker.process.answering import Answering, Outbox, rendered
from worker.process.fair_lane import FairLane
from worker.process.gateway import GatewayLink, ParentWatch, begin_process, end_process
from worker.runtime.engine_thread import (
    EngineEnded,
    EngineStep,
    EngineThread,
    GivenUp,
    ModelReady,
    RankGone,
    RemoveRequests,
    import_at_low_priority,
)
from worker.transformers import SLOW_IMPORT
from worker.vectors.jobs import VectorJob

if TYPE_CHECKING:
    from worker.engines.sequence import Token
    from worker.runtime.prompts import Prepared

logger = logging.getLogger("worker")
# A sharer of the model has this many threads at most. One thread more is there for another.
_TOKENIZER_THREADS: Final = 2
_COMPILER_THREADS: Final = 2
_HEARTBEAT_S: Final = 1.0
_UNSENT_FRAMES: Final = 256
_ENDING_LOOK_S: Final = 0.01
# numpy starts threads when it is imported. A thread keeps the priority of the thread that starts
# it.
_THREADED_IMPORT: Final = "numpy"


def run(address: str, key: bytes, parent_pid: int, incarnation: int, *, spare: bool) -> NoReturn:
    """Serve the gateway until it orders a stop or is gone. Then end the process. `key` opens the
    channel.

    A spare does its imports at low priority, because other workers compute meanwhile.
    """
    loop = WorkerLoop(address, key, incarnation, spare=spare)
    begin_process(loop.request_stop)
    loop.watch = ParentWatch(parent_pid, loop.request_stop, loop.orphan_grace_s)
    try:
        status = loop.run()
    except Exception:
        logger.exception("The main loop failed")
        status = loop.break_off()
    end_process(status)


class WorkerLoop:
    """Carries out the gateway's orders, and sends results to the gateway."""

    def __init__(self, address: str, key: bytes, incarnation: int, *, spare: bool) -> None:
        self.watch: ParentWatch | None = None
        self._link = GatewayLink(address, key)
        work = partial(_work, incarnation=incarnation, spare=spare)
        self._engine = EngineThread(work, self._link.wake)
        self._preparation = Preparation(self._engine.emit)
        self._loaded: ModelReady | None = None
        self._requests: dict[str, Answering] = {}
        self._outbox = Outbox()
        self._stop_requested = False
        self._stopping = False
        self._draining = False
        # Another rank is gone, so this rank can't compute any more.
        self._lost = False
        self._exit_status: int | None = None

    def request_stop(self) -> None:
        """Ask for an orderly end. Signal handlers and other threads may call this."""
        self._stop_requested = True
        self._link.wake()

    def orphan_grace_s(self) -> float:
        memory = self._engine.figures.memory
        return grace_s(memory.active_bytes + memory.cache_bytes)

    def run(self) -> int:
        """Run until the worker ends. Returns the exit status of the process."""
        self._engine.start()
        heartbeat_at = time.monotonic()
        while self._exit_status is None:
            self._link.wait(self._idle_s(heartbeat_at, time.monotonic()))
            if self._stop_requested:
                self._stop()
            self._link.send_unsent()
            self._read_gateway()
            self._follow_next()
            self._read_engine()
            if self._draining and not self._requests:
                self._stop()
            if time.monotonic() >= heartbeat_at:
                heartbeat_at = time.monotonic() + _HEARTBEAT_S
                self._send_heartbeat()
        self._link.close()
        return self._exit_status

    def break_off(self) -> int:
        """End the engine in order after this loop has failed, and drop the engine's events. Returns
        the exit status of the process.
        """
        over_at = time.monotonic() + self.orphan_grace_s()
        if self._engine.may_hold_model:
            self._engine.finish()
            while time.monotonic() < over_at:
                if isinstance(self._engine.next_event(), EngineEnded):
                    break
                time.sleep(_ENDING_LOOK_S)
        return 1

    def _idle_s(self, heartbeat_at: float, now: float) -> float:
        heartbeat_s = max(0.0, heartbeat_at - now)
        output_s = self._engine.throttle.left_s(now)
        return heartbeat_s if output_s is None else min(heartbeat_s, output_s)

    # From the gateway

    def _read_gateway(self) -> None:
        while (order := self._link.receive()) is not None:
            match order:
                case Generate() | Embed() as task:
                    self._begin(task)
                case Cancel(request_id=request_id):
                    if self._requests.pop(request_id, None) is not None:
                        self._engine.post(RemoveRequests((request_id,)))
                case Load() | Limit() | ClearPromptCache() as command:
                    self._engine.post(command)
                case Drain():
                    self._draining = True
                case Stop():
                    self._stop()

    def _follow_next(self) -> None:
        if (parent_pid := self._link.settle()) is not None:
            if self.watch is not None:
                self.watch.follow(parent_pid)
            self._read_gateway()

    def _begin(self, task: Generate | Embed) -> None:
        if self._draining or self._stopping:
            # This worker is about to end, so the gateway keeps the request for the next worker.
            return
        loaded = self._loaded
        if loaded is None:
            self._refuse(task.request_id, "The model is not ready for requests.")
            return
        self._requests[task.request_id] = Answering(task.request_id)
        self._engine.arriving += 1
        self._preparation.begin(loaded.prepare, task)

    def _stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._requests.clear()
        if self._engine.may_hold_model:
            self._engine.finish()
        else:
            # There is no model to release, so the process needn't wait for the engine thread's
            # imports.
            self._exit_status = 0

    # From the engine

    def _read_engine(self) -> None:
        self._engine.throttle.note_look(time.monotonic())
        while self._link.unsent < _UNSENT_FRAMES or self._stopping:
            event = self._engine.next_event()
            if not isinstance(event, EngineStep):
                self._send_output()
            match event:
                case None:
                    return
                case EngineStep(step, tokens):
                    self._add_step(step, tokens)
                case RequestFailed() as failure:
                    self._engine.arriving -= 1
                    if self._requests.pop(failure.request_id, None) is not None:
                        self._send(failure)
                case GivenUp(failure):
                    if self._requests.pop(failure.request_id, None) is not None:
                        self._send(failure)
                case ModelReady() as loaded:
                    self._loaded = loaded
                    self._send(loaded.ready)
                case EngineEnded(failed):
                    self._exit_status = LEFT_ALONE if self._lost else int(failed)
                    return
                case RankGone(rank):
                    self._lose(rank)
                case Embedded() as embedded:
                    if embedded.request_id in self._requests:
                        self._send(embedded)
                    if embedded.last:
                        self._requests.pop(embedded.request_id, None)
                case Message() as message:
                    self._send(message)
                case VectorJob() as job:
                    self._engine.arriving -= 1
                    if job.request_id in self._requests:
                        self._engine.post(job)
                case prepared:
                    self._enqueue(prepared)

    def _lose(self, rank: int) -> None:
        """End this worker because another rank is gone. The engine may return from the step that it
        computes with that rank, or may hang in it, so a timer ends the process.
        """
        logger.error("Rank %d is gone: this rank ends", rank)
        self._send(RankLost(rank=rank))
        self._lost = True
        ending = threading.Timer(self.orphan_grace_s(), os._exit, (LEFT_ALONE,))
        ending.daemon = True
        ending.start()
        self._stop()

    def _enqueue(self, prepared: Prepared) -> None:
        self._engine.arriving -= 1
        request_id = prepared.sequence.request_id
        request = self._requests.get(request_id)
        if request is None:
            return
        request.begin(prepared)
        if prepared.rendered:
            for message in rendered(request_id, prepared.prompt_ids):
                self._send(message)
        if prepared.sequence.max_tokens == 0:
            # The client wants only the number of tokens.
            del self._requests[request_id]
            self._send(Output(step=0, deltas=(request.counted(),)))
            return
        self._engine.post(prepared.sequence)

    def _add_step(self, step: int, tokens: list[Token]) -> None:
        for token in tokens:
            request = self._requests.get(token.request_id)
            if request is None:
                continue
            try:
                for each in request.prompt_deltas(token):
                    self._send(Output(step=step, deltas=(each,)))
                delta = request.delta(token)
            except Exception:
                # A detokenizer that fails on one text must not end the other streams.
                logger.exception("Detokenizing request %s failed", token.request_id)
                self._drop(token.request_id)
                self._send_output()
                self._refuse(token.request_id, "The answer could not be decoded to text.")
                continue
            if delta is None:
                continue
            if self._outbox.full:
                self._send_output()
            self._outbox.add(step, delta)
            if delta.finish_reason is not None:
                del self._requests[token.request_id]
                if token.finish_reason is None:
                    self._engine.post(RemoveRequests((token.request_id,)))

    def _send_output(self) -> None:
        if (output := self._outbox.take()) is not None:
            self._send(output)
            self._engine.throttle.note_sent(time.monotonic())

    def _drop(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self._engine.post(RemoveRequests((request_id,)))

    # To the gateway

    def _refuse(self, request_id: str, message: str) -> None:
        self._send(RequestFailed(request_id=request_id, code="internal_error", message=message))

    def _send(self, message: Message) -> None:
        if isinstance(message, LoadFailed):
            logger.error("The load failed: %s", message.reason)
        self._link.send(message)

    def _send_heartbeat(self) -> None:
        if self._link.unsent:
            # The gateway isn't reading. A heartbeat behind the unsent messages would be out of
            # date.
            return
        figures = self._engine.figures
        age_s = None if figures.last_step_at is None else time.monotonic() - figures.last_step_at
        self._send(
            Heartbeat(
                step=figures.step,
                step_age_s=age_s,
                active=figures.active,
                waiting=figures.waiting,
                memory=figures.memory,
                prompt_cache_bytes=figures.prompt_cache_bytes,
            )
        )


class Preparation:
    """Makes requests ready for the engine on threads of its own. These threads call `emit` with
    each outcome.
    """

    def __init__(self, emit: Callable[[Prepared | VectorJob | RequestFailed], None]) -> None:
        self._emit = emit
        self._tokenizers = FairLane(_TOKENIZER_THREADS + 1, _TOKENIZER_THREADS, "tokenizer")
        # For requests with pictures, one at a time because decoded pictures are large. Requests
        # without pictures needn't wait for them.
        self._decoder = FairLane(1, 1, "pictures")
        # For requests with a grammar, whose compilation may take half a second. Other requests
        # needn't wait for it.
        self._compilers = FairLane(_COMPILER_THREADS + 1, _COMPILER_THREADS, "compiler")

    def begin(
        self,
        prepare: Callable[[Generate | Embed], Prepared | VectorJob | RequestFailed],
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
        prepare: Callable[[Generate | Embed], Prepared | VectorJob | RequestFailed],
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
        return 1 + sum(len(each.content) for each in task.prompt.messages)
    return 1 + _characters(task.prompt)


def _characters(prompt: TextPrompt | TokenPrompt) -> int:
    return len(prompt.text) if isinstance(prompt, TextPrompt) else 0


def _work(thread: EngineThread, incarnation: int, *, spare: bool) -> None:
    """The work of the engine thread, which begins with imports that take seconds."""
    if spare:
        importlib.import_module(_THREADED_IMPORT)
        import_at_low_priority(SLOW_IMPORT)
    from worker.runtime.serve import serve

    serve(thread, incarnation, spare=spare)
