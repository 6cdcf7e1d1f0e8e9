"""A worker's life on the engine thread: it sends its hello, loads one model, and computes steps
until it gets the order to finish.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from protocol.answers import RequestFailed
from protocol.life import (
    Ability,
    Device,
    Hello,
    Load,
    LoadFailed,
    LoadProgress,
    PromptCaching,
    Ready,
)
from protocol.messages import PROTOCOL_VERSION
from protocol.prompt_store.store import PromptStore
from protocol.requests import Embed, Generate
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import (
    NO_CACHES,
    CacheRoom,
    CacheSizes,
    ContextInForce,
    WorkerLimits,
    limits_of,
    measure,
)
from worker.engines.row_computer import make_draft, make_head_draft, sizes_with
from worker.engines.sequence import Engine
from worker.engines.sequential import SequentialEngine
from worker.load.faults import reason_of
from worker.load.loading import LoadedModel, load, one_reason
from worker.mlx_lm.batching_trial import BatchingTrial, takes_groups, try_batching
from worker.mlx_lm.generator import Generator
from worker.mlx_lm.guessing import Draft
from worker.mlx_lm.macos import wiring
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.disk import Disk
from worker.prompt_cache.path import Paths, root_key
from worker.ranks.lead import FollowerOrders, LeadingCutter, RankLeader
from worker.runtime.engine_loop import EngineLoop, set_bound
from worker.runtime.engine_thread import EngineThread, Look, ModelReady, RankLoss
from worker.runtime.prompts import PreparedRequest, prepare
from worker.runtime.proof import Proof
from worker.runtime.recomputing import Recomputing
from worker.runtime.warm import WarmUp, practise, rehearse
from worker.system.errors import LoadAbandonedError, ModelError
from worker.system.memory import (
    freeze_imports,
    give_back_buffers,
    read_device,
    read_memory,
    released_memory,
)
from worker.vectors.engine import NoText, WithVectors
from worker.vectors.jobs import VectorJob
from worker.vectors.making import VectorServing, make_vectors

logger = logging.getLogger("worker")

# Raise this number when the form of stored prompts changes. Prompts of the old form are then not
# found any more.
_PROMPT_FORMAT = "2"
# At its end a worker waits at most so long until its prompts are stored.
_STORE_S = 5.0


def serve(thread: EngineThread, incarnation: int, *, spare: bool) -> None:
    """Run one worker's life on the calling thread. Returns once the memory is released."""
    device = read_device()
    # On a CPU a spare has nothing to warm up.
    if spare and mx.default_device() != mx.cpu:
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
    freeze_imports()
    command = thread.next_command(wait=True)
    if isinstance(command, Load):
        with released_memory():
            _serve_model(thread, command, device)


def _serve_model(thread: EngineThread, command: Load, device: Device) -> None:
    """Load a model, with other ranks if there are any, and serve it until told to finish."""
    started_at = time.monotonic()
    leader = None
    try:
        if command.ranks is not None:
            leader = RankLeader(command, lambda rank: thread.emit(RankLoss(rank)))
            leader.gather(thread.should_finish)
        served = _load(thread, command, device, leader)
        orders = None if leader is None else leader.orders
        _run(thread, served, orders, started_at, awaited=command.awaited)
    except ModelError as error:
        logger.warning("The load failed: %s", error.reason, exc_info=error.__cause__)
        thread.emit(LoadFailed(reason=error.reason, permanent=error.permanent))
    except LoadAbandonedError:
        return
    finally:
        if leader is not None:
            leader.close()


class TextServing(NamedTuple):
    """The engine for text of a loaded model, and the prompt cache with its keys. `alone` says why
    requests run one at a time, if they do.
    """

    engine: Engine
    paths: Paths
    prompt_cache: PromptCache | None
    proof: Proof | None
    alone: str = ""
    cached_prompts: PromptCaching = PromptCaching()


class ModelServing(NamedTuple):
    """A loaded model, its memory limits, its context in force, and the objects that make `text` and
    `vectors` with it. One of these may be None, since a model may make only text or only vectors.
    """

    loaded: LoadedModel
    limits: WorkerLimits
    context: ContextInForce
    text: TextServing | None
    vectors: VectorServing | None

    @property
    def abilities(self) -> tuple[Ability, ...]:
        return ("text",) if self.vectors is None else self.vectors.abilities

    def engine(self) -> Engine:
        engine: Engine = NoText() if self.text is None else self.text.engine
        if self.vectors is None:
            return engine
        return WithVectors(engine, self.vectors.engine, self.limits.room)

    def prepare(self, task: Generate | Embed) -> PreparedRequest | VectorJob | RequestFailed:
        if isinstance(task, Embed) and self.vectors is not None:
            return self.vectors.texts.prepare(task, self.context.now)
        if isinstance(task, Generate) and self.text is not None:
            return prepare(task, self.loaded, self.context.now, self.text.paths)
        # This doesn't happen: the gateway knows the model's abilities, and refuses such a request.
        return RequestFailed(
            request_id=task.request_id,
            code="invalid_request_error",
            message=f"This model can't be asked for that: it makes {', '.join(self.abilities)}.",
        )


def _load(
    thread: EngineThread, command: Load, device: Device, leader: RankLeader | None
) -> ModelServing:
    """Raises: ModelError, LoadAbandonedError."""
    loaded = load(
        command.path,
        lambda done, total: thread.emit(LoadProgress(loaded_bytes=done, total_bytes=total)),
        thread.should_finish,
        command.adapter_path,
        command.draft_path,
        pictures=command.pictures,
        own_head=command.guesses and command.draft_path is None and leader is None,
        part=None if leader is None else leader.part,
    )
    if leader is not None:
        leader.until_loaded(thread.should_finish)
    with one_reason(functools.partial(_no_pass, loaded.folder)):
        return _try(thread, command, device, leader, loaded)


def _try(
    thread: EngineThread,
    command: Load,
    device: Device,
    leader: RankLeader | None,
    loaded: LoadedModel,
) -> ModelServing:
    """Run tokens through a loaded model, and make its engines. Raises: ModelError, and any other
    error of the model's code.
    """
    caches = draft = trial = None
    if not loaded.is_encoder:
        caches = Caches(loaded.model, command.kv_bits)
    if leader is not None and (caches is None or not caches.can_be_merged):
        raise ModelError("mlx-lm has no batches of this model, which several ranks need.")
    if caches is not None and leader is None:
        # Rank 0 can't try a model without the others.
        trial = _try_batching(caches.model, loaded)
    alone = None if trial is None else trial.fault
    if alone is not None and command.draft_path is not None:
        raise ModelError(f"draft_model: guesses are checked in batches, and {alone}.")
    shape = NO_CACHES if caches is None else measure(caches.run, caches.make)
    if caches is not None and loaded.draft is not None:
        draft = make_draft(caches.model, loaded.draft, command.draft_tokens)
    elif caches is not None and alone is None:
        draft = make_head_draft(caches.model, command.draft_tokens)
    if draft is not None:
        shape = sizes_with(draft, shape)
    give_back_buffers()
    if command.wire:
        wiring.wire(loaded.weight_bytes, device)
    limits = limits_of(command, shape, loaded.weight_bytes)
    vectors = None
    if leader is None:
        vectors = make_vectors(loaded, command.path, limits.room, command.stall_s, thread.emit)
    context = _context(command, loaded, vectors, shape)
    set_bound(command.bound, limits.room, context)
    orders = None if leader is None else leader.orders
    text = None
    if caches is not None:
        text = _make_text(thread, loaded, command, limits.room, caches, orders, draft, trial)
    return ModelServing(loaded, limits, context, text, vectors)


def _no_pass(folder: Path, error: Exception) -> str:
    return reason_of(error, folder, "The weights are read, but the model computes no token")


def _run(
    thread: EngineThread,
    served: ModelServing,
    orders: FollowerOrders | None,
    started_at: float,
    *,
    awaited: bool,
) -> None:
    """Warm up, say that the model is ready, and run its engine until told to finish."""
    loaded, limits, context, text, _ = served
    warming = None
    engine = served.engine()
    try:
        if text is not None:
            tokens, vocabulary = context.now.tokens, loaded.vocabulary
            warming = WarmUp(text.engine, text.prompt_cache, limits.room, tokens, vocabulary)
            with one_reason(functools.partial(_no_pass, loaded.folder)):
                warming.start(awaited=awaited, is_interrupted=thread.should_finish)
            rehearse(loaded, context.now, text.paths)
        if thread.should_finish():
            return
        ready = Ready(
            load_s=time.monotonic() - started_at,
            weight_bytes=loaded.weight_bytes,
            context_tokens=context.now.tokens,
            alone="" if text is None else text.alone,
            fingerprint=loaded.fingerprint,
            memory=read_memory(),
            abilities=served.abilities,
            sampling=loaded.sampling_defaults,
            prompts=PromptCaching() if text is None else text.cached_prompts,
        )
        thread.figures.memory = ready.memory
        thread.emit(ModelReady(ready, served.prepare))
        at_rest = (warming, None if text is None else text.proof)
        works = [work for work in at_rest if work is not None]
        EngineLoop(thread, engine, limits, context, orders, works).run()
    finally:
        engine.close()
        if text is not None and text.prompt_cache is not None:
            text.prompt_cache.close(_STORE_S)


def _context(
    command: Load, loaded: LoadedModel, vectors: VectorServing | None, shape: CacheSizes
) -> ContextInForce:
    """The context in force at first: the configured context, the model's own, or what its arrays
    have room for, whichever is shortest. `set_bound` may shorten it further if memory is scarce.
    """
    own_tokens = loaded.context_tokens or command.context_tokens
    own_tokens = min(own_tokens, shape.most_tokens or own_tokens)
    if vectors is not None and loaded.is_encoder:
        own_tokens = min(own_tokens, vectors.texts.most_tokens or own_tokens)
    return ContextInForce(min(command.context_tokens, own_tokens))


def _make_text(
    thread: EngineThread,
    loaded: LoadedModel,
    command: Load,
    room: CacheRoom,
    caches: Caches,
    orders: FollowerOrders | None,
    draft: Draft | None,
    trial: BatchingTrial | None,
) -> TextServing:
    if orders is None:
        cutter = Cutter(caches.run, caches.make)
    else:
        cutter = LeadingCutter(orders, caches.run, caches.make)
    # With several ranks no prompt is stored, since each rank has only a part of it.
    store = _open_store(command) if cutter.can_restore and orders is None else None
    root = prompt_root(loaded, command)
    paths = Paths(root, store, needs_snapshots=cutter.needs_snapshots)
    disk = None
    if store is not None:
        disk = Disk(store, command.model_id, root, lambda: thread.post(Look()))
    prompt_cache = None
    if cutter.can_restore:
        prompt_cache = PromptCache(cutter, disk, thread.emit, command.cache_failures)
    looks = loaded.picture_processor is not None
    if trial is None or trial.fault is None:
        engine: Engine = BatchedEngine(
            caches.model,
            loaded.eos_token_ids,
            command.max_concurrency,
            room,
            prompt_cache,
            command.stall_s,
            Generator if orders is None else orders.generator,
            guesses=command.guesses,
            draft=draft,
            vision=caches.model if looks else None,
            groups=None if trial is None else trial.groups,
        )
    else:
        logger.warning("Requests run one at a time: %s.", trial.fault)
        engine = SequentialEngine(
            loaded.model,
            loaded.eos_token_ids,
            room,
            caches,
            prompt_cache,
            loaded.model.start_prompt if looks else None,
        )
    proof = None
    if prompt_cache is not None:
        # With several ranks rank 0 can compute nothing without the others.
        alone = orders is None
        recomputing = Recomputing(engine, caches, prompt_cache, room) if alone else None
        proof = Proof(prompt_cache, recomputing, thread.emit)
    cached = PromptCaching()
    if prompt_cache is not None:
        cached = PromptCaching(root.hex(), cutter.needs_snapshots, disk is not None)
    fault = (trial and trial.fault) or ""
    return TextServing(engine, paths, prompt_cache, proof, fault, cached)


def _try_batching(model: Any, loaded: LoadedModel) -> BatchingTrial:
    """Try the loaded model, whose caches may be quantized in `model`."""
    if not loaded.is_by_mlx_vlm:
        return try_batching(model)
    # mlx-vlm is an optional dependency.
    from worker.vision.trial import why_alone

    fault = why_alone(model, looks=loaded.picture_processor is not None)
    return BatchingTrial(fault, groups=fault is None and takes_groups(model))


def _open_store(command: Load) -> PromptStore | None:
    bounds = command.prompt_cache
    if bounds is None:
        return None
    return PromptStore(Path(bounds.folder), bounds.most_bytes, bounds.most_bytes_per_hour)


def prompt_root(loaded: LoadedModel, command: Load) -> bytes:
    """The root key of a model's prompts: a hash of all that determines the content of a block,
    except the tokens.
    """
    return root_key(
        _PROMPT_FORMAT,
        loaded.fingerprint,
        version("mlx-lm"),
        str(command.kv_bits),
        version("mlx-vlm") if loaded.is_by_mlx_vlm else "",
    )
