"""What the engine thread does: say hello, load one model, step until told to finish."""

from __future__ import annotations

import functools
import gc
import os
import platform
import time
from importlib.metadata import version

from mlx_lm.models.cache import make_prompt_cache

from protocol.messages import PROTOCOL_VERSION, Device, Hello, Load, LoadFailed, LoadProgress, Ready
from worker import grant
from worker.engine_thread import EngineThread, Finish, GiveBack, Loaded, Remove, Stepped
from worker.engines.batched import BatchedEngine
from worker.engines.room import CacheRoom, measure
from worker.engines.sequence import Engine, Sequence
from worker.engines.sequential import SequentialEngine
from worker.loading import LoadAbandonedError, LoadedModel, ModelError, load
from worker.prompts import Context, prepare

_MEMORY_READING_S = 1.0
_GATHER_S = 0.01


def serve(thread: EngineThread, incarnation: int) -> None:
    """Run one worker's life on the calling thread; returns once the memory is released."""
    device = grant.read_device()
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
        grant.release_memory()


def _serve_model(thread: EngineThread, command: Load, device: Device) -> None:
    started_at = time.monotonic()
    try:
        loaded = load(
            command.path,
            lambda done, total: thread.emit(LoadProgress(loaded_bytes=done, total_bytes=total)),
            thread.should_finish,
        )
    except ModelError as error:
        thread.emit(LoadFailed(reason=error.reason, permanent=error.permanent))
        return
    except LoadAbandonedError:
        return
    room = measure(loaded.model, grant.room_bytes(command))
    engine = _build_engine(thread, loaded, command, room)
    if command.grant_bytes is not None:
        grant.apply_grant(command.grant_bytes, command.baseline_bytes, device)
    context = _context(command, loaded, room)
    ready = Ready(
        load_s=time.monotonic() - started_at,
        weight_bytes=loaded.weight_bytes,
        context_tokens=context.tokens,
        batching=engine.batching,
        fingerprint=loaded.fingerprint,
        memory=grant.read_memory(),
    )
    thread.figures.memory = ready.memory
    thread.emit(
        Loaded(
            ready,
            functools.partial(prepare, loaded=loaded, context=context),
        )
    )
    try:
        _run_engine(thread, engine)
    finally:
        engine.close()


def _context(command: Load, loaded: LoadedModel, room: CacheRoom) -> Context:
    """The least of what was configured, what the model can, and what its memory holds."""
    own_tokens = loaded.context_tokens or command.context_tokens
    tokens = min(command.context_tokens, own_tokens)
    most_tokens = room.most_tokens
    if most_tokens is None or most_tokens >= tokens:
        return Context(tokens)
    return Context(
        most_tokens,
        f" That is what fits into the {command.grant_bytes or 0:,} bytes that it was granted, at "
        f"{room.token_bytes:,} bytes a token; the model itself could hold {tokens}.",
    )


def _build_engine(
    thread: EngineThread, loaded: LoadedModel, command: Load, room: CacheRoom
) -> Engine:
    if all(hasattr(cache, "merge") for cache in make_prompt_cache(loaded.model)):
        return BatchedEngine(loaded.model, loaded.eos_token_ids, command.max_concurrency, room)
    engine = SequentialEngine(
        loaded.model,
        loaded.eos_token_ids,
        between_chunks=lambda: _between_chunks(thread, engine),
    )
    return engine


def _between_chunks(thread: EngineThread, engine: SequentialEngine) -> None:
    thread.note_step(engine.active, engine.waiting)
    _obey_commands(thread, engine)
    if thread.should_finish():
        engine.close()


def _run_engine(thread: EngineThread, engine: Engine) -> None:
    memory_read_at = 0.0
    while not thread.should_finish():
        _obey_commands(thread, engine)
        if thread.should_finish():
            # Among those commands was the one to finish: no other follows.
            return
        if engine.active + engine.waiting == 0:
            thread.figures.active = thread.figures.waiting = 0
            thread.figures.memory = grant.read_memory()
            _obey(engine, thread.next_command(wait=True))
            _gather(thread, engine)
            continue
        tokens = engine.step()
        thread.note_step(engine.active, engine.waiting)
        if tokens:
            thread.emit(Stepped(thread.figures.step, tokens))
        if time.monotonic() - memory_read_at >= _MEMORY_READING_S:
            memory_read_at = time.monotonic()
            thread.figures.memory = grant.read_memory()


def _gather(thread: EngineThread, engine: Engine) -> None:
    """Let requests that arrive together begin together: one prefill costs less than several."""
    deadline = time.monotonic() + _GATHER_S
    while thread.arriving and (left_s := deadline - time.monotonic()) > 0:
        _obey(engine, thread.next_command(wait=True, at_most_s=left_s))


def _obey_commands(thread: EngineThread, engine: Engine) -> None:
    while (command := thread.next_command(wait=False)) is not None:
        _obey(engine, command)


def _obey(engine: Engine, command: Load | Sequence | Remove | GiveBack | Finish | None) -> None:
    match command:
        case Sequence():
            engine.add(command)
        case Remove(request_ids):
            engine.remove(request_ids)
        case GiveBack():
            grant.trim()
        case _:
            # A second load can't be, and finishing is asked for by a flag.
            return
