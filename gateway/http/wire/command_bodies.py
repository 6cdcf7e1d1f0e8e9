"""The bodies that commands write and read too, such as the status; this file imports no server.

A command may call a gateway of an earlier version, so a field that is added gets a default.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.models.check_reports import CheckStatus
from gateway.workers.cache_proof import CacheProofState
from gateway.workers.cause_of_death import LastExit, RepeatedDeath
from protocol.check import CHECK_S, LONGEST_CHECK_S, SHORTEST_CHECK_S
from protocol.life import Ability


class OpenAIErrorBody(Struct):
    message: str
    type: str
    code: str
    param: str | None


class OpenAIErrorEnvelope(Struct):
    error: OpenAIErrorBody


class MemoryStatus(Struct):
    """The machine's memory. The bytes of workers, spares, the gateway, others, stranded and
    available ones add up to the total, except for changes between two readings. `granted_bytes` are
    the floors, the loans, and the room of the spare and of a check.

    Workers on a card with its own memory count there, with the card's budget and grants; in the
    machine's memory they are among the others. The card's bytes are null if no worker uses one.
    """

    total_bytes: int
    budget_bytes: int | None
    granted_bytes: int
    footprint_bytes: int | None
    spare_bytes: int | None
    gateway_bytes: int | None
    other_bytes: int | None
    available_bytes: int
    stranded_bytes: int | None
    pressure: str | None
    card_total_bytes: int | None
    card_available_bytes: int | None


class RankStatus(Struct):
    """One of the processes that compute a model together."""

    rank: int
    host: str
    pid: int | None
    footprint_bytes: int | None


class WorkerStatus(Struct):
    """A process. Its footprint consists of the model's weights, the caches of its sequences with
    the memory of a step, and the buffers that MLX keeps for later.

    With several `ranks` the pid is that of rank 0, and the bytes are those of all ranks. Without
    ranks the list is empty.
    """

    pid: int
    incarnation: int
    started_at: float
    footprint_bytes: int | None
    peak_footprint_bytes: int | None
    granted_bytes: int | None
    weight_bytes: int | None
    cache_bytes: int | None
    buffer_bytes: int | None
    last_step_age_s: float | None
    tokens_per_s: float | None
    prompt_cache_bytes: int | None
    ranks: list[RankStatus]


class PromptCacheStatus(Struct):
    """Bytes of cached prompts in memory (0 without a worker) and on disk, where they outlive their
    worker. Of the `prompt_tokens` in requests that were answered since the gateway's start,
    `cached_tokens` were in the cache; the rate is their share.
    """

    memory_bytes: int | None
    disk_bytes: int | None
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float | None


class GuessesStatus(Struct, frozen=True):
    """The guessed tokens that were checked since the gateway's start. The `accepted` ones were
    right; the rate is their share.
    """

    accepted: int = 0
    rejected: int = 0
    accept_rate: float | None = None


class SharerStatus(Struct, frozen=True):
    """One who shares the model: a key, or the address of a client without one; empty for the
    gateway itself. `cost_s` are the seconds of the model that its requests took since the gateway's
    start.
    """

    name: str
    share: int
    cost_s: float
    active_requests: int
    queue_depth: int


class ModelStatus(Struct):
    """`failure` is the error message of refused requests; null if requests are not refused. The age
    of the oldest request counts from its arrival, also if it was parked; null if there is none.
    `context_tokens` is the context in force; null until the model is loaded. `floor_bytes` stay
    with the model as long as it is loaded, `lent_bytes` may be called back, `returning_bytes` were
    called back and are still held. With `wanted_bytes` in all, no request would wait for memory.
    `repeated_deaths` are errors that workers die of again and again. Of the `sharers` that have
    requests the first has the next turn. `command`: its server is a program of the configuration.
    `cache_proof` is null until something was proven of the prompt cache.
    `invalid_outputs` counts answers, try by try, whose logits weren't finite or were all the same.
    A `plain` worker has no quantized caches and makes no guesses. `looped_answers` repeated the
    same tokens until they were cut off, the `repetition_stops` among them because of that.
    `check` is the result of its last check.
    """

    id: str
    state: str
    reason: str | None
    failure: str | None
    pinned: bool
    queue_depth: int
    oldest_waiting_s: float | None
    active_requests: int
    oldest_active_s: float | None
    estimate_bytes: int | None
    floor_bytes: int | None
    lent_bytes: int | None
    returning_bytes: int | None
    wanted_bytes: int | None
    context_tokens: int | None
    last_used_at: float | None
    prompt_cache: PromptCacheStatus
    worker: WorkerStatus | None
    restarts: int
    last_exit: LastExit | None
    guesses: GuessesStatus = GuessesStatus()
    repeated_deaths: list[RepeatedDeath] = []
    sharers: list[SharerStatus] = []
    command: bool = False
    cache_proof: CacheProofState | None = None
    invalid_outputs: int = 0
    plain: bool = False
    looped_answers: int = 0
    repetition_stops: int = 0
    check: CheckStatus | None = None


class GroupStatus(Struct):
    """A group of models, as it is configured. `loaded` models have memory or are about to get it.
    `kept_bytes` are kept free for the other models, or lent until they need them. If the models
    are loaded together, `reason` says which one is missing, and why.
    """

    id: str
    models: tuple[str, ...]
    together: bool
    swap: bool
    reserve: bool
    loaded: tuple[str, ...]
    kept_bytes: int
    reason: str | None


class ConfigStatus(Struct):
    """The configuration file in force, if there is one, and the SHA-256 of its content."""

    file: str | None
    digest: str | None


class HostStatus(Struct):
    """Another machine that ranks may run on. `reason` says why it can't be reached, or why its
    ranks can't work with the ranks here. The bytes are of this gateway's ranks there.
    """

    name: str
    ssh: str
    reachable: bool
    reason: str | None
    version: str | None
    budget_bytes: int | None
    held_bytes: int | None
    free_bytes: int | None
    ranks: int | None


class OfferStatus(Struct):
    """A model of an upstream. `active_requests` are those that come from here."""

    id: str
    state: str
    reason: str | None
    active_requests: int


class UpstreamStatus(Struct):
    """Another server with models of its own. `reason` says why requests to it are refused now.
    `bulkhead`: it is another Bulkhead, which tells the states of its models.
    """

    name: str
    url: str
    reachable: bool
    reason: str | None
    bulkhead: bool
    active_requests: int
    models: list[OfferStatus]


class Status(Struct):
    """`instance` is the gateway's name among those that pass requests on; it changes with each
    start.
    """

    version: str
    pid: int
    uptime_s: float
    state: str
    reason: str | None
    config: ConfigStatus
    memory: MemoryStatus
    prompt_cache: PromptCacheStatus
    models: list[ModelStatus]
    hosts: list[HostStatus]
    groups: list[GroupStatus]
    upstreams: list[UpstreamStatus] = []
    instance: str = ""

    def model(self, model_id: str) -> ModelStatus | None:
        return next(
            (model_status for model_status in self.models if model_status.id == model_id), None
        )


class ModelBody(Struct):
    """OpenAI's and Anthropic's model object in one.

    `input_modalities` (OpenRouter's name) are "text", and "image" for models with vision.
    A request for the model of an upstream passes the gateways in `via`, by their instances; the
    last has the model, and the first is this one. Of foreign servers only this one is known.
    `max_model_len` (vLLM's name) is the context in force. `last_used_at` is a Unix time, null if
    the model wasn't used since the gateway's start. The bytes are the model's floor, its loan, and
    the bytes that it wants in all; they are null until it is loaded. `abilities` are the kinds of
    its answers: text, embedding, score; null until it is loaded, and for a command, whose server
    doesn't tell. `prompt_cache` reveals something of other keys' prompts, so it is null for keys
    that don't share prompts. `default_parameters` (OpenRouter's name) are the configured ones.
    `check` is the result of its last check.
    """

    id: str
    aliases: tuple[str, ...]
    object: str
    created: int
    owned_by: str
    type: str
    display_name: str
    created_at: str
    input_modalities: list[str]
    state: str
    reason: str | None
    max_model_len: int | None
    last_used_at: float | None
    abilities: tuple[Ability, ...] | None
    floor_bytes: int | None
    lent_bytes: int | None
    wanted_bytes: int | None
    prompt_cache: PromptCacheStatus | None
    active_requests: int | None = None
    queue_depth: int | None = None
    via: tuple[str, ...] = ()
    default_parameters: dict[str, float] = {}
    check: CheckStatus | None = None

    @property
    def is_upstreams(self) -> bool:
        """Whether it is the model of an upstream, whose name is the first part of its id."""
        return self.id.startswith(f"{self.owned_by}/")


class ModelListing(Struct):
    """OpenAI's list with Anthropic's fields for pages: one page has all models."""

    object: str
    data: list[ModelBody]
    has_more: bool
    first_id: str | None
    last_id: str | None


class OrderOptions(Struct, forbid_unknown_fields=True):
    """With `wait` the answer comes when the order is carried out. `force` and `hold` are the
    options of the commands. A load gives the model at least `context_tokens` of context, until the
    gateway ends: a model that is loaded with less is loaded again.
    """

    wait: bool = True
    force: bool = False
    hold: bool = False
    context_tokens: Annotated[int, Meta(ge=1)] | UnsetType = UNSET


class CheckOptions(Struct, forbid_unknown_fields=True):
    """With `stream` the answer is a stream, with an event for each step of the check. The check
    takes `seconds` at most, and the load of the model on top.
    """

    stream: bool = False
    seconds: Annotated[float, Meta(ge=SHORTEST_CHECK_S, le=LONGEST_CHECK_S)] = CHECK_S


class UpgradeAnswer(Struct, frozen=True):
    """`seconds` is the time until the next gateway served. For `still_s` of them the workers held
    back their messages.
    """

    version: str
    version_before: str
    pid: int
    pid_before: int
    seconds: float
    still_s: float


class PageCode(Struct):
    """`code` is None if requests need no key, so that the page opens without."""

    code: str | None
    expires_in_s: float
