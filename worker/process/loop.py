"""The main thread of a worker, which never computes. `WorkerLoop.run` repeats these steps:

1. Wait for an order of the gateway, an event of the engine, or the time of the next heartbeat.
2. Stop if a signal has asked for that.
3. Send the messages that the gateway had no room for.
4. Carry out the gateway's orders: requests go to `Preparation`, commands go to the engine thread.
5. Change to the next gateway once that has taken this worker over.
6. Read the engine's events: prepared requests go to the engine, and tokens become deltas.
7. Stop if the worker drains and has no request left.
8. Send a heartbeat once a second.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from protocol.answers import Embedded, Output, OutputInvalid, RequestFailed
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
from protocol.message_base import Message
from protocol.process import LEFT_ALONE, grace_s
from protocol.requests import Cancel, Embed, Generate
from worker.process.answering import Answering, Outbox, rendered
from worker.process.gateway import GatewayLink, ParentWatch, end_process, set_up_process
from worker.process.preparation import Preparation
from worker.runtime.engine_thread import (
    EngineEnd,
    EngineStep,
    EngineThread,
    ModelReady,
    RankLoss,
    RemoveRequests,
    RequestFailure,
    import_at_low_priority,
)
from worker.transformers import SLOW_IMPORT
from worker.vectors.jobs import VectorJob

if TYPE_CHECKING:
    from worker.engines.sequence import Token
    from worker.runtime.prompts import PreparedRequest

logger = logging.getLogger("worker")
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
    set_up_process(loop.request_stop)
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
            self._follow_gateway()
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
                if isinstance(self._engine.next_event(), EngineEnd):
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
                    self._accept(task)
                case Cancel(request_id=request_id):
                    if self._requests.pop(request_id, None) is not None:
                        self._engine.post(RemoveRequests((request_id,)))
                case Load() | Limit() | ClearPromptCache() as command:
                    self._engine.post(command)
                case Drain():
                    self._draining = True
                case Stop():
                    self._stop()

    def _follow_gateway(self) -> None:
        if (parent_pid := self._link.switch_gateway()) is not None:
            if self.watch is not None:
                self.watch.follow(parent_pid)
            self._read_gateway()

    def _accept(self, task: Generate | Embed) -> None:
        if self._draining or self._stopping:
            # This worker is about to end, so the gateway keeps the request for the next worker.
            return
        loaded = self._loaded
        if loaded is None:
            self._refuse(task.request_id, "The model is not ready for requests.")
            return
        self._requests[task.request_id] = Answering(task.request_id)
        self._engine.arriving += 1
        self._preparation.submit(loaded.prepare, task)

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
        self._engine.throttle.record_look(time.monotonic())
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
                case RequestFailure(failure):
                    if self._requests.pop(failure.request_id, None) is not None:
                        self._send(failure)
                case ModelReady() as loaded:
                    self._loaded = loaded
                    self._send(loaded.ready)
                case EngineEnd(failed):
                    self._exit_status = LEFT_ALONE if self._lost else int(failed)
                    return
                case RankLoss(rank):
                    self._lose(rank)
                case Embedded() as embedded:
                    if embedded.request_id in self._requests:
                        self._send(embedded)
                    if embedded.last:
                        self._requests.pop(embedded.request_id, None)
                case OutputInvalid(request_id=request_id, goes_on=goes_on) as invalid:
                    if not goes_on:
                        self._requests.pop(request_id, None)
                    self._send(invalid)
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

    def _enqueue(self, prepared: PreparedRequest) -> None:
        self._engine.arriving -= 1
        request_id = prepared.sequence.request_id
        request = self._requests.get(request_id)
        if request is None:
            return
        request.start(prepared)
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
                for prompt_delta in request.prompt_deltas(token):
                    self._send(Output(step=step, deltas=(prompt_delta,)))
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
        if (output := self._outbox.collect()) is not None:
            self._send(output)
            self._engine.throttle.record_sent(time.monotonic())

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


def _work(thread: EngineThread, incarnation: int, *, spare: bool) -> None:
    """The work of the engine thread, which begins with imports that take seconds."""
    if spare:
        importlib.import_module(_THREADED_IMPORT)
        import_at_low_priority(SLOW_IMPORT)
    from worker.runtime.serve import serve

    serve(thread, incarnation, spare=spare)
