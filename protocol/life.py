"""A worker's life: its hello, its load, its heart, its end."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from protocol.memory import Bound, MlxMemory
from protocol.message import Message
from protocol.ranks import Ranks
from protocol.requests import SamplingDefaults

# What a model makes of a text.
Ability: TypeAlias = Literal["text", "embedding", "score"]


class Device(Struct, frozen=True, kw_only=True):
    """What MLX computes on. Linux's CPU back end reports no memory figures, and CUDA no working
    set: there `memory_bytes` is the card's.
    """

    name: str
    architecture: str
    recommended_working_set_bytes: int | None = None
    memory_bytes: int | None = None


class Hello(Message, frozen=True, tag="hello"):
    protocol_version: str
    pid: int
    incarnation: int
    python_version: str
    mlx_version: str
    mlx_lm_version: str
    device: Device


class PromptCacheDisk(Struct, frozen=True, kw_only=True):
    """The prompt cache's folder, which all models share, and its bounds in bytes."""

    folder: str
    most_bytes: int
    most_bytes_per_hour: int


class Load(Message, frozen=True, tag="load"):
    """Load a model. `limit_bytes` bounds the process until a `Limit` changes that; None leaves the
    limits of MLX in place.

    `beside_bytes` is what the process holds beside MLX's account: its footprint before the load. A
    step takes `working_bytes`, and `working_token_bytes` more for each token of its longest
    sequence. The `bound` may have room for fewer tokens than were configured. With `wire` the
    weights are kept from being paged out, where the system can. With `pictures` it looks at them.

    A chunk of prefill may hold up running streams for `stall_s` beside one step. `prompt_cache`
    None keeps prompts in memory alone; what is stored is `model_id`'s. With `kv_bits` sequences are
    kept quantized. The adapter and the draft model are folders. With `ranks` other processes
    compute it too: bytes are those of each. Where it is `awaited` by requests, kernels that these
    may not need are compiled later.
    """

    path: str
    max_concurrency: int
    context_tokens: int
    limit_bytes: int | None = None
    beside_bytes: int = 0
    working_bytes: int = 0
    working_token_bytes: int = 0
    wire: bool = True
    model_id: str = ""
    stall_s: float = 0.1
    prompt_cache: PromptCacheDisk | None = None
    kv_bits: int | None = None
    adapter_path: str | None = None
    draft_path: str | None = None
    draft_tokens: int = 0
    bound: Bound | None = None
    pictures: bool = False
    ranks: Ranks | None = None
    awaited: bool = False


class LoadProgress(Message, frozen=True, tag="load-progress"):
    loaded_bytes: int
    total_bytes: int


class Ready(Message, frozen=True, tag="ready"):
    """The model answers. `context_tokens` is the least of what was configured, what the model can
    and what its memory holds.

    `fingerprint` changes when weights, tokenizer or template do: a request that has begun may go
    on only where it is the same.
    """

    load_s: float
    weight_bytes: int
    context_tokens: int
    batching: bool
    fingerprint: str
    memory: MlxMemory
    abilities: tuple[Ability, ...] = ("text",)
    sampling: SamplingDefaults = SamplingDefaults()


class LoadFailed(Message, frozen=True, tag="load-failed"):
    """One readable reason. `permanent`: another attempt cannot help until the files change."""

    reason: str
    permanent: bool


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """Sent once a second by the thread beside the engine.

    `step` counts engine steps (decoding and prefill chunks), `step_age_s` is the time since the
    last one ended, None before the first. `waiting` requests are not yet in the engine's batch. The
    prompt cache has `prompt_cache_bytes` in memory.
    """

    step: int
    step_age_s: float | None
    active: int
    waiting: int
    memory: MlxMemory
    prompt_cache_bytes: int = 0


class ClearPromptCache(Message, frozen=True, tag="clear-prompt-cache"):
    """Let go of all prompts in memory; answered by `PromptCacheCleared`."""


class PromptCacheCleared(Message, frozen=True, tag="prompt-cache-cleared"):
    reclaimed_bytes: int


class Drain(Message, frozen=True, tag="drain"):
    """Take no new request, finish what runs, then exit with status 0."""


class Stop(Message, frozen=True, tag="stop"):
    """Drop what runs, give the memory back, exit with status 0."""


class RankLost(Message, frozen=True, tag="rank-lost"):
    """Rank 0 hears nothing of this one any more, and ends."""

    rank: int
