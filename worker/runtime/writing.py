"""What makes a loaded model write text: its engine, and the prompts that are kept for it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from protocol.life import Load
from protocol.prompt_store import PromptStore
from worker.engines.batched import BatchedEngine
from worker.engines.caches import Caches
from worker.engines.room import Room
from worker.engines.sequence import Engine
from worker.engines.sequential import SequentialEngine
from worker.load.loading import LoadedModel
from worker.mlx_lm.generator import Generator
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.disk import Disk
from worker.prompt_cache.path import Paths, root_key
from worker.runtime.engine_thread import EngineThread, Look
from worker.system.errors import ModelError

if TYPE_CHECKING:
    from worker.ranks.lead import Lead

# Another one, and what is stored isn't found any more.
_PROMPT_FORMAT = "1"


class Text(NamedTuple):
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


def make_text(
    thread: EngineThread,
    loaded: LoadedModel,
    command: Load,
    room: Room,
    caches: Caches,
    lead: Lead | None,
) -> Text:
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
    return Text(engine, paths, prompt_cache)


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
        version("mlx-vlm") if loaded.eyes is not None else "",
    )


def _build_engine(
    loaded: LoadedModel,
    command: Load,
    room: Room,
    caches: Caches,
    prompt_cache: PromptCache | None,
    lead: Lead | None,
) -> Engine:
    # mlx-vlm's models keep positions of one sequence in themselves.
    if caches.can_be_merged and loaded.eyes is None:
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
        None if loaded.eyes is None else loaded.model.begin,
    )
