"""A worker's life in messages: hello, load, memory, heartbeat, move to another gateway, end."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

from protocol.message import Message
from protocol.requests import SamplingDefaults


class MlxMemory(Struct, frozen=True, kw_only=True):
    """MLX's own account of its allocations, in bytes."""

    active_bytes: int = 0
    cache_bytes: int = 0
    peak_bytes: int = 0


class Bound(Struct, frozen=True):
    """The most that a process can get at present, if others give back their loans: in bytes, and as
    tokens of one sequence (None: not known). `reason` is a sentence that says why it isn't more.
    """

    bytes: int
    tokens: int | None
    reason: str


class Limit(Message, frozen=True, tag="limit"):
    """Another limit of the process, after a loan or a recall, and perhaps another bound.

    The worker takes it over between two steps, and answers with a `Need` that has this limit, and
    the context that follows from the bound. Sequences that wait for more than the bound fail.
    """

    limit_bytes: int
    beside_bytes: int
    bound: Bound | None = None


class Need(Message, frozen=True, tag="need"):
    """The memory that the worker could use, as limits of its process in bytes; 0 while it has
    nothing to do.

    It keeps to `limit_bytes`, and takes no new sequence longer than `context_tokens`. `used_bytes`
    are enough for the sequences that run now, and `wanted_bytes` also for all that wait; with less
    than `least_bytes` not even its first sequence can run. `held` counts the sequences that wait
    only for memory. `prompt` numbers the prompt that its first sequence computes, over several
    steps; 0 if it computes none.

    The prompt cache has `cache_bytes` beside that, and could use `cache_wanted_bytes`: these are
    bytes of its own, not limits.
    """

    limit_bytes: int
    used_bytes: int
    wanted_bytes: int
    least_bytes: int
    held: int
    context_tokens: int
    prompt: int = 0
    cache_bytes: int = 0
    cache_wanted_bytes: int = 0


# The results that a model can make from a text.
Ability: TypeAlias = Literal["text", "embedding", "score"]


class Device(Struct, frozen=True, kw_only=True):
    """The device that MLX computes on. On CUDA there is no working set, and `memory_bytes` is the
    card's. Linux's CPU back end reports neither.
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


RankBackend: TypeAlias = Literal["ring", "jaccl", "nccl"]
RankSplit: TypeAlias = Literal["tensor", "pipeline"]


class Ranks(Struct, frozen=True, kw_only=True):
    """The processes that compute one model together, as mlx.distributed connects them. Rank 0 gets
    this, and the others follow rank 0.

    `addresses` has for each rank the places, host:port, at which its neighbours reach it; NCCL and
    JACCL use only the first place of rank 0. `devices` are JACCL's: for each rank its RDMA device
    towards each other rank, None towards itself. The followers connect to `endpoint`, a ZeroMQ
    address, and prove themselves with the first of the `keys`. A follower that is silent for
    `silence_s` is lost.
    """

    size: int
    backend: RankBackend
    split: RankSplit
    addresses: tuple[tuple[str, ...], ...]
    endpoint: str
    keys: tuple[bytes, bytes]
    silence_s: float
    devices: tuple[tuple[str | None, ...], ...] = ()


class PromptCacheDisk(Struct, frozen=True, kw_only=True):
    """The folder of stored prompts, which all models share, and its bounds in bytes."""

    folder: str
    most_bytes: int
    most_bytes_per_hour: int


class Load(Message, frozen=True, tag="load"):
    """Load a model. `limit_bytes` bounds the process until a `Limit` changes that; None leaves the
    limits of MLX in place.

    The process holds `beside_bytes` beside MLX's account: its footprint before the load. A step
    takes `working_bytes`, and `working_token_bytes` more for each token of its longest sequence.
    The `bound` may have room for fewer tokens than were configured. With `wire` the weights are
    kept from being paged out, if the system can. With `pictures` the model looks at pictures.

    A chunk of prefill may hold up running streams for `stall_s` beside one step. Without
    `prompt_cache` prompts are kept only in memory; stored prompts belong to `model_id`. With
    `kv_bits` caches of sequences are quantized. The adapter and the draft model are folders. With
    `ranks` other processes compute the model too, and bytes are those of each process. If requests
    have `awaited` the model, kernels that they may not need are compiled later.
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
    """The model can answer. `context_tokens` is the least of three lengths: the configured one, the
    model's own, and the one that its memory can hold.

    `fingerprint` changes when weights, tokenizer or template change. A request that has begun may
    go on only in a worker with the same fingerprint.
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
    """The load failed, for one readable reason. `permanent`: another attempt can't help until the
    files change.
    """

    reason: str
    permanent: bool


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """Sent once a second by the thread beside the engine.

    `step` counts engine steps (decoding and prefill chunks), `step_age_s` is the time since the
    last one ended, None before the first. `waiting` requests have not joined the engine's batch.
    The prompt cache has `prompt_cache_bytes` in memory.
    """

    step: int
    step_age_s: float | None
    active: int
    waiting: int
    memory: MlxMemory
    prompt_cache_bytes: int = 0


class ClearPromptCache(Message, frozen=True, tag="clear-prompt-cache"):
    """Drop all kept prompts from memory; answered by `PromptCacheCleared`."""


class PromptCacheCleared(Message, frozen=True, tag="prompt-cache-cleared"):
    reclaimed_bytes: int


class Drain(Message, frozen=True, tag="drain"):
    """Take no new request, finish the requests that run, then exit with status 0."""


class Stop(Message, frozen=True, tag="stop"):
    """Drop all requests, give the memory back, and exit with status 0."""


class RankLost(Message, frozen=True, tag="rank-lost"):
    """Rank 0 hears no more from this rank, and ends."""

    rank: int


class Move(Message, frozen=True, tag="move"):
    """Another gateway, the process `parent`, is about to take over this worker. It listens at
    `address`, and `key` opens its channel. Answered by `Moved`.
    """

    address: str
    key: bytes
    parent: int


class Moved(Message, frozen=True, tag="moved"):
    """The last message of the worker on this channel, before it moves."""


class Settle(Message, frozen=True, tag="settle"):
    """The next gateway's first message: from now on it is the worker's only gateway, and its
    parent.
    """


class Stay(Message, frozen=True, tag="stay"):
    """The next gateway didn't come up: the worker goes on as before `Move`."""


# mlx-lm's caches grow by so many tokens at once.
CACHE_STEP_TOKENS: Final = 256
# The cache of a layer that grows, or is merged with another, exists as it was, as it will be, and
# once more while the new entries are written into it. MLX computes some layers before it has freed
# earlier ones: peaks of 2.5 to 2.8 times the caches were measured with two layers on the CPU.
_LAYERS_IN_FLIGHT: Final = 4
_COPIES: Final = 2.0


def peak_share(layers: int) -> float:
    """The peak of a batch's caches in a step, as a multiple of their size after it."""
    return 1.0 + _COPIES * min(_LAYERS_IN_FLIGHT, layers) / max(layers, 1)


LARGEST_CHUNK_TOKENS: Final = 2048
# Longer chunks are no faster on a CPU, and its attention stores a score for every pair of a chunk's
# token and an earlier token.
LARGEST_CHUNK_TOKENS_ON_CPU: Final = 256
