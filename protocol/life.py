"""The messages of a worker's life: hello, load, memory, heartbeat, move to another gateway, end."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

from protocol.message_base import Message
from protocol.requests import SamplingDefaults


class MlxMemory(Struct, frozen=True, kw_only=True):
    """MLX's own account of its allocations, in bytes."""

    active_bytes: int = 0
    cache_bytes: int = 0
    peak_bytes: int = 0


class Bound(Struct, frozen=True):
    """The most memory that a worker's process can get at present, if other models give back their
    loans: in bytes, and as tokens of one sequence (None: not known). `reason` is a sentence that
    says why the bound isn't higher.
    """

    bytes: int
    tokens: int | None
    reason: str


class Limit(Message, frozen=True, tag="limit"):
    """A new limit of the process, after a loan or a recall, and perhaps a new bound. The process
    holds `beside_bytes` beside MLX's account.

    The worker takes the limit over between two steps. It answers with a `Need` that has this limit,
    and the context that follows from the bound. Sequences that wait for more than the bound fail.
    """

    limit_bytes: int
    beside_bytes: int
    bound: Bound | None = None


class Need(Message, frozen=True, tag="need"):
    """The memory that the worker could use, as limits of its process in bytes; 0 while it has
    nothing to do.

    The worker keeps to `limit_bytes`, and takes no new sequence longer than `context_tokens`.
    `used_bytes` are enough for the sequences that run now, and `wanted_bytes` also for all that
    wait. With less than `least_bytes` not even the first sequence can run. `held` counts the
    sequences that wait only for memory. `prompt` numbers the prompt that the first sequence
    computes, over several steps; 0: it computes none.

    The worker computes at most `rows` sequences at a time; 0: it doesn't say.

    Beside these limits, the prompt cache has `cache_bytes`, and could use `cache_wanted_bytes`.
    Both are bytes of the cache alone, not limits of the process.
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
    rows: int = 0


# The results that a model can make from a text. "token_vectors" are one of each token, of which
# requests get the scores alone.
Ability: TypeAlias = Literal["text", "embedding", "score", "token_vectors"]


class Device(Struct, frozen=True, kw_only=True):
    """The device that MLX computes on. On CUDA there is no working set, and `memory_bytes` is the
    memory of the card. The CPU back end of Linux reports neither number.
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
    this from the gateway, and the other ranks, the followers, follow rank 0.

    `addresses` has for each rank the addresses, host:port, at which its neighbours reach it. NCCL
    and JACCL use only the first address of rank 0. `devices` are for JACCL: for each rank its RDMA
    device towards each other rank, None towards itself. The followers connect to `endpoint`, a
    ZeroMQ address, and prove themselves with the first of the `keys`. A follower that is silent for
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
    not paged out, if the system can do so. With `pictures` the model looks at pictures.

    A chunk of a prompt may hold up running streams for `stall_s` beside the time of one step.
    Without `prompt_cache` prompts are cached only in memory. Stored prompts belong to `model_id`.
    With `kv_bits` caches of sequences are quantized. The adapter and the draft model are folders.
    With `guesses` a step may check guessed tokens, and make several tokens of a sequence. The draft
    model, or else the model's own head, guesses `draft_tokens` tokens at a time.
    With `ranks` other processes compute the model too, and all bytes are those of each process. If
    the model is `awaited` by requests, kernels that these may not need are compiled later. The
    prompt cache of the model's workers was found to be wrong `cache_failures` times.
    """

    path: str
    max_concurrency: int | None
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
    guesses: bool = True
    bound: Bound | None = None
    pictures: bool = False
    ranks: Ranks | None = None
    awaited: bool = False
    cache_failures: int = 0


class RunCommand(Message, frozen=True, tag="run-command"):
    """Run the server of a command, in place of `Load`. In the texts of `command` and `environment`
    {port} and {socket} stand for the place to listen at, and {key} for a key of this start. The
    server is ready once `health` answers with 200; None: once it answers at all.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    health: str | None


class LoadProgress(Message, frozen=True, tag="load-progress"):
    loaded_bytes: int
    total_bytes: int


class PromptCaching(Struct, frozen=True):
    """How a model's prompts are cached. `root` changes with all that a cached block depends on
    beside its tokens, such as the model's files and the version of mlx-lm; empty: no prompt is
    cached. With `at_places` a prompt can go on from some places alone. They are also `on_disk`.
    """

    root: str = ""
    at_places: bool = False
    on_disk: bool = False


class Ready(Message, frozen=True, tag="ready"):
    """The model can answer. `context_tokens` is the least of three lengths: the configured context,
    the model's own context, and the longest sequence that has room in the memory.

    `fingerprint` changes when weights, tokenizer or template change. A request that has begun may
    go on only in a worker with the same fingerprint. The server of a command has `address`: the key
    of its start, "@", and host:port or the path of a socket. Requests run one at a time if `alone`,
    a phrase, says why.
    """

    load_s: float
    weight_bytes: int
    context_tokens: int
    fingerprint: str
    memory: MlxMemory
    abilities: tuple[Ability, ...] = ("text",)
    sampling: SamplingDefaults = SamplingDefaults()
    address: str = ""
    alone: str = ""
    prompts: PromptCaching = PromptCaching()


class LoadFailed(Message, frozen=True, tag="load-failed"):
    """The load failed; `reason` is for people. `permanent`: another attempt can't help until the
    files change.
    """

    reason: str
    permanent: bool


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """A sign of life, sent once a second by the worker's thread beside the engine.

    `step` counts steps of the engine, of answers and of chunks of prompts. `step_age_s` is the time
    since the last step ended, None before the first step. `active` requests are in the engine's
    batch, and `waiting` requests have not joined it. The prompt cache has `prompt_cache_bytes` in
    memory.
    """

    step: int
    step_age_s: float | None
    active: int
    waiting: int
    memory: MlxMemory
    prompt_cache_bytes: int = 0


class ClearPromptCache(Message, frozen=True, tag="clear-prompt-cache"):
    """Drop all cached prompts from memory; answered by `PromptCacheCleared`."""


class PromptCacheCleared(Message, frozen=True, tag="prompt-cache-cleared"):
    reclaimed_bytes: int


class CacheQuarantined(Message, frozen=True, tag="cache-quarantined"):
    """Cached blocks are not found any more, since something was wrong with them: `why`. `blocks`
    and `blocks_bytes` count those in memory. The `source` says where the blocks came from: which
    version wrote them, where they were read, and of how many blocks they were joined.
    """

    blocks: int
    blocks_bytes: int
    source: str
    why: str


# A prompt cache that was found to be wrong so many times isn't used any more.
MOST_CACHE_FAILURES: Final = 2


class CacheProven(Message, frozen=True, tag="cache-proven"):
    """What was proven of the prompt cache since the last such message, while the model was at rest:
    the bytes of `blocks`, and the content of `tokens`, which were computed anew. Each of `failures`
    is a place where the cache was wrong. `off`: the worker goes on without a prompt cache.
    """

    blocks: int
    tokens: int
    failures: int = 0
    off: bool = False


class Drain(Message, frozen=True, tag="drain"):
    """Take no new request, finish the requests that run, then exit with status 0."""


class Stop(Message, frozen=True, tag="stop"):
    """Drop all requests, give the memory back, and exit with status 0."""


class RankLost(Message, frozen=True, tag="rank-lost"):
    """Rank 0 hears no more from the follower with this number, and ends."""

    rank: int


class Move(Message, frozen=True, tag="move"):
    """Another gateway, the process `parent`, is about to take over this worker. That gateway
    listens at `address`, and `key` opens its channel. Answered by `Moved`.
    """

    address: str
    key: bytes
    parent: int


class Moved(Message, frozen=True, tag="moved"):
    """The last message of the worker on this channel, before it moves."""


class Settle(Message, frozen=True, tag="settle"):
    """The first message of the next gateway, which is from now on the worker's only gateway, and
    its parent.
    """


class Stay(Message, frozen=True, tag="stay"):
    """The next gateway didn't come up: the worker goes on as before `Move`."""


# The caches of mlx-lm grow by so many tokens at once.
CACHE_STEP_TOKENS: Final = 256
# While a layer's cache grows, or is merged with another cache, three copies of it exist: the old
# one, the new one, and one into which the new entries are written. MLX computes some layers before
# it has freed the copies of earlier layers: on the CPU peaks of 2.5 to 2.8 times the caches were
# measured with two layers.
_LAYERS_IN_FLIGHT: Final = 4
_COPIES: Final = 2.0


def peak_share(layers: int) -> float:
    """The peak of a batch's caches in a step, as a multiple of their size after the step."""
    return 1.0 + _COPIES * min(_LAYERS_IN_FLIGHT, layers) / max(layers, 1)


# A draft model, or a model's own head, knows at most so many of the last tokens of a sequence.
DRAFT_TOKENS: Final = 2048
# For a model's own head, the states of at most so many of the last tokens of a sequence are stored.
STATE_TOKENS: Final = 64
LARGEST_CHUNK_TOKENS: Final = 2048
# Longer chunks are no faster on a CPU. And attention on a CPU stores a score for every pair of a
# token of the chunk and an earlier token.
LARGEST_CHUNK_TOKENS_ON_CPU: Final = 256
