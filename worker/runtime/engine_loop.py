"""The conductor of an engine's turn, on the engine thread: from a sequence in the command
queue to the rows of a batch, and back to deltas.

1. `EngineThread.post` puts a prepared sequence into the command queue of the engine thread.
2. `_obey_all` carries out the commands: the engine adds the sequence to its own queue.
3. `_refuse_hopeless` refuses sequences that need more memory than the process can ever get.
4. `_send_need` tells the gateway the memory that the engine needs, if that has changed.
5. `_wait` waits while the engine has nothing to compute, or lacks memory or blocks from disk.
6. `BatchedEngine.step` puts rows aside that don't fit the limit, and admits sequences to a batch.
7. `RowBatch.step` computes a chunk of the prompts, and one step of the rows that decode.
8. `DecodingRows.next` draws a token for each position of a row, and accepts the right guesses.
9. `_send_tokens` hands the tokens to the main thread, and wakes it if a client waits for them.
10. `Answering.delta` turns a token into a delta, and `Outbox` makes one message of all deltas.
11. `Engine.store_blocks` adds the new blocks of the rows to the prompt cache.
12. `_refuse_broken` refuses sequences that can't go on, and `_report_spoilt` reports those whose
    logits weren't valid.
13. `_send_figures` sends the costs of the steps, and reads the memory for the next heartbeat.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from protocol.answers import Costs, OutputInvalid
from protocol.life import (
    Bound,
    ClearPromptCache,
    Limit,
    Need,
    PromptCacheCleared,
)
from worker.engines.room import CacheRoom, ContextInForce, WorkerLimits
from worker.engines.row_batch import PREFILL_ROWS
from worker.engines.sequence import Engine, Sequence, Token
from worker.ranks.lead import FollowerOrders
from worker.runtime.engine_thread import (
    EngineCommand,
    EngineStep,
    EngineThread,
    RemoveRequests,
    RequestFailure,
)
from worker.runtime.prompts import no_further
from worker.system.gpu_recovery import GpuRecovery
from worker.system.memory import read_memory, trim
from worker.vectors.engine import WithVectors
from worker.vectors.jobs import VectorJob

# How long the first request waits for a second one. Most requests come alone.
_ALONE_S: Final = 0.002
# How long two or more requests wait for another one, and the bound of the whole wait.
_PAUSE_S: Final = 0.01
_MOST_S: Final = 0.05
_MEMORY_READING_S = 1.0
_COSTS_S: Final = 0.25
_ANSWER_S = 0.02
# How often the engine checks a sequence that waits for blocks from disk or for memory.
_FETCH_S = 0.1
# While the engine computes, smaller changes of the prompt cache's bytes are not sent. Otherwise the
# gateway would get a message for each block.
_SLIGHT_BYTES = 4_000_000


class AtRest(Protocol):
    """Work that is done while the engine has nothing to compute: warming up, or proofs."""

    @property
    def is_over(self) -> bool: ...

    @property
    def quiet_s(self) -> float:
        """How long the engine should have had nothing to do before."""

    def go_on(self, is_interrupted: Callable[[], bool]) -> None:
        """Do a part of the work, which ends soon after `is_interrupted`."""


class EngineLoop:
    """Runs the engine of one model, until the thread is told to finish."""

    def __init__(
        self,
        thread: EngineThread,
        engine: Engine,
        limits: WorkerLimits,
        context: ContextInForce,
        orders: FollowerOrders | None = None,
        at_rest: Iterable[AtRest] = (),
    ) -> None:
        """The first of `at_rest` that isn't over goes on while there is nothing to compute."""
        self._thread = thread
        self._engine = engine
        self._recovery = GpuRecovery(engine.recompute_all)
        self._limits = limits
        self._context = context
        self._orders = orders
        self._at_rest = tuple(at_rest)
        self._sent: Need | None = None
        self._memory_read_at = 0.0
        self._costs_sent_at = 0.0

    def run(self) -> None:
        while not self._thread.should_finish():
            try:
                self._turn()
            except RuntimeError as error:
                self._recovery.recover(error)

    def _turn(self) -> None:
        """Do the steps 2 to 13. The main thread does the steps 1 and 10."""
        engine = self._engine
        self._obey_all()
        if self._thread.should_finish():
            # The order to finish was among these commands, and no command follows it.
            return
        self._refuse_hopeless()
        asked = self._send_need()
        if not self._wait(asked=asked):
            return
        self._send_tokens(engine.step())
        engine.store_blocks()
        self._refuse_broken()
        self._report_spoilt()
        self._send_figures()

    def _wait(self, *, asked: bool) -> bool:
        """Wait as long as a step would compute nothing. Returns whether to compute a step.
        `asked`: the gateway may answer with more memory, within a millisecond.
        """
        engine = self._engine
        if engine.active + engine.waiting == 0:
            self._rest()
            return False
        wait_s = None
        if engine.fetching and not engine.active:
            wait_s = _FETCH_S
        elif engine.short and (asked or not engine.active):
            # If no sequence runs, the engine has nothing else to do, so it waits longer.
            wait_s = _ANSWER_S if engine.active else _MEMORY_READING_S
        if wait_s is not None:
            self._obey(self._thread.next_command(wait=True, at_most_s=wait_s))
        self._obey_all()
        return True

    def _send_tokens(self, tokens: list[Token]) -> None:
        thread, engine = self._thread, self._engine
        if tokens or engine.active:
            thread.record_step(engine.active, engine.waiting)
        else:
            # All sequences still wait, so this doesn't count as a step.
            thread.figures.active, thread.figures.waiting = 0, engine.waiting
        if tokens:
            thread.emit_step(EngineStep(thread.figures.step, tokens))

    def _send_figures(self) -> None:
        now = time.monotonic()
        if now - self._costs_sent_at >= _COSTS_S:
            self._send_costs()
        if now - self._memory_read_at >= _MEMORY_READING_S:
            self._memory_read_at = now
            self._thread.figures.memory = read_memory()

    def _send_costs(self) -> None:
        self._costs_sent_at = time.monotonic()
        if seconds := self._engine.collect_costs():
            self._thread.emit(Costs(seconds=seconds))

    def _rest(self) -> None:
        self._send_costs()
        self._thread.figures.active = self._thread.figures.waiting = 0
        self._engine.store_blocks()
        self._thread.figures.memory = read_memory()
        if self._orders is not None:
            self._orders.rest()
        next_work = next((work for work in self._at_rest if not work.is_over), None)
        quiet_s = None if next_work is None else next_work.quiet_s
        command = self._thread.next_command(wait=True, at_most_s=quiet_s)
        if command is None and next_work is not None:
            next_work.go_on(lambda: self._thread.is_wanted)
            command = self._thread.next_command(wait=False)
        self._obey(command)
        self._gather()

    def _gather(self) -> None:
        """Wait shortly for further requests after the first one, so that all of them begin
        together.
        """
        most = PREFILL_ROWS if self._engine.batching else 1
        gathering = Gathering(time.monotonic(), most)
        while self._engine.waiting and not self._thread.should_finish():
            left_s = gathering.left_s(time.monotonic(), self._thread.arriving)
            if not left_s:
                return
            command = self._thread.next_command(wait=True, at_most_s=left_s)
            self._obey(command)
            if isinstance(command, Sequence):
                gathering.add(time.monotonic())

    def _obey_all(self) -> None:
        for command in self._thread.commands():
            self._obey(command)

    def _obey(self, command: EngineCommand | None) -> None:
        match command:
            case Sequence():
                self._engine.add(command)
            case VectorJob() if isinstance(self._engine, WithVectors):
                self._engine.add_job(command)
            case RemoveRequests(request_ids):
                self._engine.remove(request_ids)
            case ClearPromptCache():
                bytes_ = self._engine.clear_prompts()
                trim()
                self._thread.emit(PromptCacheCleared(reclaimed_bytes=bytes_))
            case Limit() as limit:
                self._set_limit(limit)
            case _:
                # `Look` only ends a wait, an order to finish is read from a flag, and a second load
                # never comes.
                return

    def _set_limit(self, limit: Limit) -> None:
        before_bytes = self._limits.mlx_bytes
        self._limits.set_limit(limit.limit_bytes, limit.beside_bytes)
        if self._orders is not None:
            self._orders.set_limit(limit.limit_bytes, limit.beside_bytes)
        set_bound(limit.bound, self._limits.room, self._context)
        # Even the same limit may leave less for MLX, since drivers hold memory beside MLX's
        # account, as pools on CUDA.
        if self._limits.mlx_bytes < before_bytes:
            self._engine.make_room()
            trim()
            self._thread.figures.memory = read_memory()
        self._send_need(anyway=True)

    def _refuse_hopeless(self) -> None:
        for sequence in self._engine.remove_hopeless():
            failure = self._context.hopeless(sequence, self._limits.room)
            self._thread.emit(RequestFailure(failure))

    def _refuse_broken(self) -> None:
        for broken in self._engine.remove_broken():
            self._thread.emit(RequestFailure(no_further(broken)))

    def _report_spoilt(self) -> None:
        for spoilt in self._engine.collect_spoilt():
            self._thread.emit(
                OutputInvalid(
                    request_id=spoilt.request_id,
                    goes_on=spoilt.goes_on,
                    quarantined_blocks=spoilt.blocks,
                )
            )

    def _send_need(self, *, anyway: bool = False) -> bool:
        """Tell the gateway the engine's needs if they have changed, or in any case with `anyway`.
        Returns whether the gateway may answer with more memory: anything but the prompt's number
        has changed.
        """
        limit_bytes = self._limits.room.limit_bytes
        if limit_bytes is None:
            return False
        figures = self._engine.need
        self._thread.figures.prompt_cache_bytes = figures.cache_bytes
        need = Need(
            limit_bytes=limit_bytes,
            **figures._asdict(),
            held=self._engine.waiting if self._engine.short else 0,
            context_tokens=self._context.now.tokens,
            rows=self._engine.most_rows,
        )
        sent = self._sent
        if sent is not None and not anyway and self._is_known(need, sent):
            return False
        self._sent = need
        self._thread.emit(need)
        return sent is None or msgspec.structs.replace(need, prompt=sent.prompt) != sent

    def _is_known(self, need: Need, sent: Need) -> bool:
        """Whether the gateway knows this need. While sequences run or wait, a small change of the
        prompt cache's bytes doesn't count.
        """
        slight = abs(need.cache_bytes - sent.cache_bytes) < _SLIGHT_BYTES
        if slight and self._engine.active + self._engine.waiting:
            sent = msgspec.structs.replace(sent, cache_bytes=need.cache_bytes)
        return need == sent


class Gathering:
    """Decides how long an idle engine waits after a first request for others that come with it.

    Rows whose prompts are computed together join the batch together. Each group of rows that joins
    costs a copy of all caches of the batch. Times are seconds on the caller's clock.
    """

    def __init__(self, now: float, most: int) -> None:
        """The first request comes at `now`. At most `most` prompts are computed together."""
        self._most = most
        self._there = 1
        self._until = now + _MOST_S
        self._quiet_until = now + _ALONE_S

    def add(self, now: float) -> None:
        """Note that another request has come."""
        self._there += 1
        self._quiet_until = now + _PAUSE_S

    def left_s(self, now: float, arriving: int) -> float:
        """Seconds to wait for the next request; 0: begin now. `arriving` is the number of prompts
        that are being tokenized.
        """
        if self._there >= self._most:
            return 0.0
        until = self._until if arriving else min(self._until, self._quiet_until)
        return max(0.0, until - now)


def set_bound(bound: Bound | None, room: CacheRoom, context: ContextInForce) -> None:
    """Take over the most memory and tokens that the model can get. None: they are not bounded."""
    room.most_bytes = None if bound is None else bound.bytes
    context.set_bound(bound)
