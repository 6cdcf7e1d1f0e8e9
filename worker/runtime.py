"""What the engine thread does: say hello, load one model, step until told to finish."""

from __future__ import annotations

import gc
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import msgspec

from protocol.messages import (
    PROTOCOL_VERSION,
    Bound,
    ClearPromptCache,
    Device,
    Embed,
    Generate,
    Hello,
    Limit,
    Load,
    LoadFailed,
    LoadProgress,
    Need,
    PromptCacheCleared,
    Ready,
    RequestFailed,
)
from protocol.prompt_store import PromptStore
from worker.caches import Caches
from worker.engine_thread import (
    EngineCommand,
    EngineThread,
    GivenUp,
    Loaded,
    Look,
    Remove,
    Stepped,
)
from worker.engines.batch import PREFILL_ROWS
from worker.engines.batched import BatchedEngine
from worker.engines.room import NO_CACHES, Room, measure
from worker.engines.sequence import Engine, Sequence
from worker.engines.sequential import SequentialEngine
from worker.gathering import Gathering
from worker.limits import Limits, read_device, read_memory, release_memory, trim
from worker.loading import LoadedModel, load
from worker.model_error import LoadAbandonedError, ModelError
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.disk import Disk
from worker.prompt_cache.keys import root_key
from worker.prompt_cache.path import Paths
from worker.prompts import ContextInForce, Prepared, no_further, prepare
from worker.vectors.beside import NoText, WithVectors
from worker.vectors.job import Job
from worker.vectors.making import Making, make_vectors
from worker.warm import warm

# Another one, and what is stored isn't found any more.
_PROMPT_FORMAT = "1"
_MEMORY_READING_S = 1.0
_ANSWER_S = 0.02
# A fetch that is late is noticed so often.
_FETCH_S = 0.5
# For prompts that wait to be stored, at the end.
_STORE_S = 5.0


def serve(thread: EngineThread, incarnation: int) -> None:
    """Run one worker's life on the calling thread; returns once the memory is released."""
    device = read_device()
    thread.emit(
        Hello(
            protocol_version=PROTOCOL_VERSION,
            pid=os.getpid(),
            incarnation=incarnation,
            python_version=platform.python_version(),
            mlx_version=version("mlx"),
            mlx_lm_version=version("mlx-lm"),
            device=device,
        )
    )
    command = thread.next_command(wait=True)
    if isinstance(command, Load):
        _serve_model(thread, command, device)
        # The model's modules refer to each other in cycles.
        gc.collect()
        release_memory()


def _serve_model(thread: EngineThread, command: Load, device: Device) -> None:
    started_at = time.monotonic()
    try:
        loaded = load(
            command.path,
            lambda done, total: thread.emit(LoadProgress(loaded_bytes=done, total_bytes=total)),
            thread.should_finish,
            command.adapter_path,
            command.draft_path,
            pictures=command.pictures,
        )
        caches = None
        if not loaded.is_encoder:
            caches = Caches(loaded.model, loaded.draft, command.kv_bits)
    except ModelError as error:
        thread.emit(LoadFailed(reason=error.reason, permanent=error.permanent))
        return
    except LoadAbandonedError:
        return
    room = Room(
        NO_CACHES if caches is None else measure(caches.run, caches.make),
        working_bytes=command.working_bytes,
        working_token_bytes=command.working_token_bytes,
    )
    limits = Limits(room, device, loaded.weight_bytes, wire=command.wire)
    if command.limit_bytes is not None:
        limits.take(command.limit_bytes, command.beside_bytes)
    try:
        making = make_vectors(loaded, command.path, room, command.stall_s, thread.emit)
    except ModelError as error:
        thread.emit(LoadFailed(reason=error.reason, permanent=error.permanent))
        return
    context = _context(command, loaded, making)
    _take_bound(command.bound, room, context)
    text = None if caches is None else _make_text(thread, loaded, command, limits, caches)
    engine: Engine = NoText() if text is None else text.engine
    if text is not None:
        warm(engine, context.now.tokens, loaded.vocabulary)
    if making is not None:
        engine = WithVectors(engine, making.engine, room)
    turns = Turns(thread, engine, limits, context)
    if thread.should_finish():
        engine.close()
        return
    ready = Ready(
        load_s=time.monotonic() - started_at,
        weight_bytes=loaded.weight_bytes,
        context_tokens=context.now.tokens,
        batching=engine.batching,
        fingerprint=loaded.fingerprint,
        memory=read_memory(),
        abilities=("text",) if making is None else making.abilities,
    )
    thread.figures.memory = ready.memory

    def prepare_task(task: Generate | Embed) -> Prepared | Job | RequestFailed:
        if isinstance(task, Embed) and making is not None:
            return making.texts.prepare(task, context.now)
        if isinstance(task, Generate) and text is not None:
            return prepare(task, loaded, context.now, text.paths)
        # The gateway sends no such thing, as it knows what the model can.
        return RequestFailed(
            request_id=task.request_id,
            code="invalid_request_error",
            message=f"This model can't be asked for that: it makes {', '.join(ready.abilities)}.",
        )

    thread.emit(Loaded(ready, prepare_task))
    try:
        turns.run()
    finally:
        engine.close()
        if text is not None and text.prompt_cache is not None:
            text.prompt_cache.close(_STORE_S)


class _Text(NamedTuple):
    """What writes text."""

    engine: Engine
    paths: Paths
    prompt_cache: PromptCache | None


def _make_text(
    thread: EngineThread, loaded: LoadedModel, command: Load, limits: Limits, caches: Caches
) -> _Text:
    cutter = Cutter(caches.run, caches.make)
    store = _open_store(command) if cutter.can_restore else None
    root = _prompt_root(loaded, command)
    paths = Paths(root, store, needs_snapshots=cutter.needs_snapshots)
    disk = None if store is None else Disk(store, command.model_id, lambda: thread.post(Look()))
    prompt_cache = PromptCache(cutter, disk) if cutter.can_restore else None
    engine = _build_engine(loaded, command, limits, caches, prompt_cache)
    return _Text(engine, paths, prompt_cache)


def _open_store(command: Load) -> PromptStore | None:
    bounds = command.prompt_cache
    if bounds is None:
        return None
    return PromptStore(Path(bounds.folder), bounds.most_bytes, bounds.most_bytes_per_hour)


def _prompt_root(loaded: LoadedModel, command: Load) -> bytes:
    """Whatever the entries of a cache depend on beside the tokens."""
    return root_key(
        _PROMPT_FORMAT,
        loaded.fingerprint,
        version("mlx-lm"),
        str(command.kv_bits),
        loaded.draft_fingerprint,
        version("mlx-vlm") if loaded.eyes is not None else "",
    )


def _context(command: Load, loaded: LoadedModel, making: Making | None) -> ContextInForce:
    """The least of what was configured and what the model can, until memory has less."""
    own_tokens = loaded.context_tokens or command.context_tokens
    if making is not None and loaded.is_encoder:
        own_tokens = min(own_tokens, making.texts.most_tokens or own_tokens)
    return ContextInForce(min(command.context_tokens, own_tokens))


def _take_bound(bound: Bound | None, room: Room, context: ContextInForce) -> None:
    room.most_bytes = None if bound is None else bound.bytes
    context.take(bound)


def _build_engine(
    loaded: LoadedModel,
    command: Load,
    limits: Limits,
    caches: Caches,
    prompt_cache: PromptCache | None,
) -> Engine:
    # mlx-vlm's models keep positions of one sequence in themselves.
    if caches.can_be_merged and loaded.eyes is None:
        return BatchedEngine(
            loaded.model,
            loaded.eos_token_ids,
            command.max_concurrency,
            limits.room,
            loaded.weight_bytes,
            limits.apply,
            prompt_cache,
            command.stall_s,
        )
    return SequentialEngine(
        loaded.model,
        loaded.eos_token_ids,
        limits.room,
        caches,
        prompt_cache,
        loaded.draft,
        max(1, command.draft_tokens) if loaded.draft is not None else 0,
        None if loaded.eyes is None else loaded.model.begin,
    )


class Turns:
    """Steps of an engine, and between them what it is told and what it says of its needs."""

    def __init__(
        self, thread: EngineThread, engine: Engine, limits: Limits, context: ContextInForce
    ) -> None:
        self._thread = thread
        self._engine = engine
        self._limits = limits
        self._context = context
        self._told: Need | None = None
        self._memory_read_at = 0.0

    def run(self) -> None:
        thread, engine = self._thread, self._engine
        while not thread.should_finish():
            self._obey_all()
            if thread.should_finish():
                # Among those commands was the one to finish: no other follows.
                return
            self._refuse_hopeless()
            asked = self._tell_need()
            if engine.active + engine.waiting == 0:
                self._rest()
            elif engine.fetching and not engine.active:
                self._obey(thread.next_command(wait=True, at_most_s=_FETCH_S))
                self._step()
            elif engine.short and (asked or not engine.active):
                # The answer takes a millisecond; alone, without it, there is nothing to compute.
                wait_s = _ANSWER_S if engine.active else _MEMORY_READING_S
                self._obey(thread.next_command(wait=True, at_most_s=wait_s))
                self._step()
            else:
                self._step()

    def _step(self) -> None:
        thread, engine = self._thread, self._engine
        self._obey_all()
        tokens = engine.step()
        if tokens or engine.active:
            thread.note_step(engine.active, engine.waiting)
        else:
            # All of them wait for memory: that is no step.
            thread.figures.active, thread.figures.waiting = 0, engine.waiting
        if tokens:
            thread.emit(Stepped(thread.figures.step, tokens))
        for broken in engine.take_broken():
            thread.emit(GivenUp(no_further(broken)))
        if time.monotonic() - self._memory_read_at >= _MEMORY_READING_S:
            self._memory_read_at = time.monotonic()
            thread.figures.memory = read_memory()

    def _rest(self) -> None:
        self._thread.figures.active = self._thread.figures.waiting = 0
        self._thread.figures.memory = read_memory()
        self._obey(self._thread.next_command(wait=True))
        self._gather()

    def _gather(self) -> None:
        """Let requests that arrive together begin together."""
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
            case Job() if isinstance(self._engine, WithVectors):
                self._engine.add_job(command)
            case Remove(request_ids):
                self._engine.remove(request_ids)
            case ClearPromptCache():
                bytes_ = self._engine.clear_prompts()
                trim()
                self._thread.emit(PromptCacheCleared(reclaimed_bytes=bytes_))
            case Limit() as limit:
                self._take_limit(limit)
            case _:
                # A second load can't be, and finishing is asked for by a flag.
                return

    def _take_limit(self, limit: Limit) -> None:
        before_bytes = self._limits.mlx_bytes
        self._limits.take(limit.limit_bytes, limit.beside_bytes)
        _take_bound(limit.bound, self._limits.room, self._context)
        # What drivers keep beside MLX's account, as pools on CUDA, leaves it less under any limit.
        if self._limits.mlx_bytes < before_bytes:
            self._engine.make_room()
            trim()
        self._tell_need(anyway=True)

    def _refuse_hopeless(self) -> None:
        for each in self._engine.take_hopeless():
            self._thread.emit(GivenUp(self._context.hopeless(each, self._limits.room)))

    def _tell_need(self, *, anyway: bool = False) -> bool:
        """Say what has changed; True if that may bring memory."""
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
        )
        told = self._told
        if need == told and not anyway:
            return False
        self._told = need
        self._thread.emit(need)
        return told is None or msgspec.structs.replace(need, prompt=told.prompt) != told
