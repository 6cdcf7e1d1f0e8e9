"""A worker's life on the engine thread: say hello, load one model, step until told to finish."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import mlx.core as mx

from protocol.answers import RequestFailed
from protocol.life import Device, Hello, Load, LoadFailed, LoadProgress, Ready
from protocol.messages import PROTOCOL_VERSION
from protocol.prompt_store.store import PromptStore
from protocol.requests import Embed, Generate
from worker.engines.batched import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import NO_CACHES, CacheRoom, ContextInForce, MemoryLimits, measure
from worker.engines.sequence import Engine
from worker.engines.sequential import SequentialEngine
from worker.load.loading import LoadedModel, load
from worker.mlx_lm.generator import Generator
from worker.mlx_lm.wiring import wiring
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.disk import Disk
from worker.prompt_cache.path import Paths, root_key
from worker.runtime.engine_loop import EngineLoop, take_bound
from worker.runtime.engine_thread import EngineThread, Look, ModelReady
from worker.runtime.prompts import Prepared, prepare
from worker.runtime.warm import Warming, rehearse
from worker.system.errors import LoadAbandonedError, ModelError
from worker.system.memory import (
    give_back_buffers,
    leave_imports_alone,
    read_device,
    read_memory,
    released_memory,
)
from worker.vectors.engine import NoText, WithVectors
from worker.vectors.jobs import VectorJob
from worker.vectors.making import VectorServing, make_vectors

if TYPE_CHECKING:
    from worker.ranks.lead import Lead, RankLeader

# Another one, and what is stored isn't found any more.
_PROMPT_FORMAT = "1"
# For prompts that wait to be stored, at the end.
_STORE_S = 5.0


def serve(thread: EngineThread, incarnation: int, *, spare: bool) -> None:
    """Run one worker's life on the calling thread; returns once the memory is released."""
    device = read_device()
    # A CPU has nothing to prepare.
    if spare and mx.default_device() != mx.cpu:
        from worker.runtime.warm import practise

        practise()
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
    leave_imports_alone()
    command = thread.next_command(wait=True)
    if isinstance(command, Load):
        with released_memory():
            _serve_model(thread, command, device)


def _serve_model(thread: EngineThread, command: Load, device: Device) -> None:
    if command.ranks is None:
        _serve_alone(thread, command, device)
        return
    leader = None
    try:
        # Only with ranks is this worth its imports.
        from worker.ranks.lead import RankLeader

        leader = RankLeader(command, thread.lose)
        leader.gather(thread.should_finish)
        _serve_alone(thread, command, device, leader)
    except ModelError as error:
        thread.emit(LoadFailed(reason=error.reason, permanent=error.permanent))
    except LoadAbandonedError:
        return
    finally:
        if leader is not None:
            leader.close()


def _serve_alone(
    thread: EngineThread, command: Load, device: Device, leader: RankLeader | None = None
) -> None:
    """Or with others, of which nobody else needs to know."""
    started_at = time.monotonic()
    try:
        loaded = load(
            command.path,
            lambda done, total: thread.emit(LoadProgress(loaded_bytes=done, total_bytes=total)),
            thread.should_finish,
            command.adapter_path,
            command.draft_path,
            pictures=command.pictures,
            part=None if leader is None else leader.part,
        )
        if leader is not None:
            leader.until_loaded(thread.should_finish)
        caches = None
        if not loaded.is_encoder:
            caches = Caches(loaded.model, loaded.draft, command.kv_bits)
        if leader is not None:
            check_batches(caches)
    except ModelError as error:
        thread.emit(LoadFailed(reason=error.reason, permanent=error.permanent))
        return
    except LoadAbandonedError:
        return
    room = CacheRoom(
        NO_CACHES if caches is None else measure(caches.run, caches.make),
        working_bytes=command.working_bytes,
        working_token_bytes=command.working_token_bytes,
    )
    give_back_buffers()
    if command.wire:
        wiring.wire(loaded.weight_bytes, device)
    limits = MemoryLimits(room, loaded.weight_bytes)
    if command.limit_bytes is not None:
        limits.take(command.limit_bytes, command.beside_bytes)
    making = None
    try:
        if leader is None:
            making = make_vectors(loaded, command.path, room, command.stall_s, thread.emit)
    except ModelError as error:
        thread.emit(LoadFailed(reason=error.reason, permanent=error.permanent))
        return
    context = _context(command, loaded, making)
    take_bound(command.bound, room, context)
    lead = None if leader is None else leader.lead
    text = None if caches is None else make_text(thread, loaded, command, room, caches, lead)
    engine: Engine = NoText() if text is None else text.engine
    warming = None
    if text is not None:
        warming = Warming(engine, text.prompt_cache, room, context.now.tokens, loaded.vocabulary)
        warming.begin(awaited=command.awaited, is_interrupted=thread.should_finish)
        rehearse(loaded, context.now, text.paths)
    if making is not None:
        engine = WithVectors(engine, making.engine, room)
    engine_loop = EngineLoop(thread, engine, limits, context, lead, warming)
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
        sampling=loaded.sampling_defaults,
    )
    thread.figures.memory = ready.memory

    def prepare_task(task: Generate | Embed) -> Prepared | VectorJob | RequestFailed:
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

    thread.emit(ModelReady(ready, prepare_task))
    try:
        engine_loop.run()
    finally:
        engine.close()
        if text is not None and text.prompt_cache is not None:
            text.prompt_cache.close(_STORE_S)


def _context(command: Load, loaded: LoadedModel, making: VectorServing | None) -> ContextInForce:
    """The least of what was configured and what the model can, until memory has less."""
    own_tokens = loaded.context_tokens or command.context_tokens
    if making is not None and loaded.is_encoder:
        own_tokens = min(own_tokens, making.texts.most_tokens or own_tokens)
    return ContextInForce(min(command.context_tokens, own_tokens))


def make_text(
    thread: EngineThread,
    loaded: LoadedModel,
    command: Load,
    room: CacheRoom,
    caches: Caches,
    lead: Lead | None,
) -> TextServing:
    cutter = _make_cutter(caches, lead)
    # Each rank has its part of a prompt: what is stored would be of one.
    stores = cutter.can_restore and lead is None
    store = _open_store(command) if stores else None
    root = prompt_root(loaded, command)
    paths = Paths(root, store, needs_snapshots=cutter.needs_snapshots)
    disk = None
    if store is not None:
        disk = Disk(store, command.model_id, root, lambda: thread.post(Look()))
    prompt_cache = PromptCache(cutter, disk) if cutter.can_restore else None
    engine = _build_engine(loaded, command, room, caches, prompt_cache, lead)
    return TextServing(engine, paths, prompt_cache)


def _build_engine(
    loaded: LoadedModel,
    command: Load,
    room: CacheRoom,
    caches: Caches,
    prompt_cache: PromptCache | None,
    lead: Lead | None,
) -> Engine:
    # mlx-vlm's models keep positions of one sequence in themselves.
    if caches.can_be_merged and loaded.picture_processor is None:
        return BatchedEngine(
            loaded.model,
            loaded.eos_token_ids,
            command.max_concurrency,
            room,
            loaded.weight_bytes,
            prompt_cache,
            command.stall_s,
            Generator if lead is None else lead.generator,
        )
    return SequentialEngine(
        loaded.model,
        loaded.eos_token_ids,
        room,
        caches,
        prompt_cache,
        loaded.draft,
        max(1, command.draft_tokens) if loaded.draft is not None else 0,
        None if loaded.picture_processor is None else loaded.model.begin,
    )


class TextServing(NamedTuple):
    """What writes text."""

    engine: Engine
    paths: Paths
    prompt_cache: PromptCache | None


def check_batches(caches: Caches | None) -> None:
    """Raises: ModelError: other ranks can't follow this model's engine."""
    if caches is None or not caches.can_be_merged:
        raise ModelError("mlx-lm has no batches of this model, which several ranks need.")


def _make_cutter(caches: Caches, lead: Lead | None) -> Cutter:
    if lead is None:
        return Cutter(caches.run, caches.make)
    from worker.ranks.lead import LeadingCutter

    return LeadingCutter(lead, caches.run, caches.make)


def _open_store(command: Load) -> PromptStore | None:
    bounds = command.prompt_cache
    if bounds is None:
        return None
    return PromptStore(Path(bounds.folder), bounds.most_bytes, bounds.most_bytes_per_hour)


def prompt_root(loaded: LoadedModel, command: Load) -> bytes:
    """Whatever the entries of a cache depend on beside the tokens."""
    return root_key(
        _PROMPT_FORMAT,
        loaded.fingerprint,
        version("mlx-lm"),
        str(command.kv_bits),
        loaded.draft_fingerprint,
        version("mlx-vlm") if loaded.picture_processor is not None else "",
    )
