"""The bodies of requests and answers, as far as the commands write and read them.

They are not the gateway's own types: those bring its whole machinery along, and a gateway of
another version may answer.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct


class MemoryReading(Struct, frozen=True):
    total_bytes: int
    available_bytes: int
    granted_bytes: int
    budget_bytes: int | None = None
    footprint_bytes: int | None = None
    spare_bytes: int | None = None
    gateway_bytes: int | None = None
    other_bytes: int | None = None
    stranded_bytes: int | None = None
    pressure: str | None = None


class RankReading(Struct, frozen=True):
    rank: int
    host: str
    pid: int | None = None
    footprint_bytes: int | None = None


class WorkerReading(Struct, frozen=True):
    pid: int
    footprint_bytes: int | None = None
    granted_bytes: int | None = None
    weight_bytes: int | None = None
    cache_bytes: int | None = None
    buffer_bytes: int | None = None
    last_step_age_s: float | None = None
    tokens_per_s: float | None = None
    ranks: tuple[RankReading, ...] = ()


class PromptCacheReading(Struct, frozen=True):
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    prompt_tokens: int = 0
    hit_rate: float | None = None


class ShownExit(Struct, frozen=True):
    at: float
    reason: str
    code: int | None = None
    signal: str | None = None
    log_tail: tuple[str, ...] = ()

    @property
    def how(self) -> str:
        if self.signal:
            return f"by {self.signal}"
        # Of a worker that another gateway started nobody learns it.
        return "with an unknown status" if self.code is None else f"with code {self.code}"


class ModelReading(Struct, frozen=True):
    id: str
    state: str
    queue_depth: int
    active_requests: int
    restarts: int
    oldest_waiting_s: float | None = None
    oldest_active_s: float | None = None
    reason: str | None = None
    failure: str | None = None
    context_tokens: int | None = None
    floor_bytes: int | None = None
    lent_bytes: int | None = None
    wanted_bytes: int | None = None
    prompt_cache: PromptCacheReading = PromptCacheReading()
    worker: WorkerReading | None = None
    last_exit: ShownExit | None = None


class HostReading(Struct, frozen=True):
    name: str
    url: str
    reachable: bool
    reason: str | None = None
    version: str | None = None
    budget_bytes: int | None = None
    held_bytes: int | None = None
    free_bytes: int | None = None
    ranks: int | None = None


class GroupReading(Struct, frozen=True):
    id: str
    models: tuple[str, ...]
    loaded: tuple[str, ...] = ()
    together: bool = False
    swap: bool = False
    reserve: bool = False
    kept_bytes: int = 0
    reason: str | None = None


class ForecastReading(Struct, frozen=True):
    """`outline` is as it was sent; a gateway of an earlier version gives none."""

    model: str
    about: str
    outline: Raw = Raw(b"null")


class ConfigReading(Struct, frozen=True):
    """The file that the gateway has read, absolute, and what tells its content from another."""

    file: str | None = None
    digest: str | None = None


class GatewayReading(Struct, frozen=True):
    version: str
    pid: int
    uptime_s: float
    state: str
    memory: MemoryReading
    models: tuple[ModelReading, ...]
    groups: tuple[GroupReading, ...] = ()
    reason: str | None = None
    prompt_cache: PromptCacheReading = PromptCacheReading()
    hosts: tuple[HostReading, ...] = ()
    config: ConfigReading = ConfigReading()

    def model(self, model_id: str) -> ModelReading | None:
        return next((each for each in self.models if each.id == model_id), None)


class EventReading(Struct, frozen=True):
    """What every event tells; the rest depends on its kind."""

    id: int
    at: float
    event: str
    model: str | None = None


class ListedModel(Struct, frozen=True):
    id: str
    state: str
    max_model_len: int | None = None
    aliases: tuple[str, ...] = ()
    last_used_at: float | None = None


class ModelList(Struct, frozen=True):
    data: tuple[ListedModel, ...]


class RawModelList(Struct, frozen=True):
    data: Raw


class Order(Struct, frozen=True):
    """What an operator's verb sends along."""

    wait: bool = True
    force: bool = False
    hold: bool = False


class ChatMessage(Struct, frozen=True):
    role: Literal["system", "user", "assistant"]
    content: str


class ChunkDelta(Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class ChunkChoice(Struct, frozen=True):
    delta: ChunkDelta
    finish_reason: str | None = None


class Chunk(Struct, frozen=True):
    choices: tuple[ChunkChoice, ...]


class CompletionChoice(Struct, frozen=True):
    text: str


class UsageReading(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int


class CompletionChunk(Struct, frozen=True):
    choices: tuple[CompletionChoice, ...]
    usage: UsageReading | None = None


class ErrorBody(Struct, frozen=True):
    message: str
    code: str | None = None


class ErrorEnvelope(Struct, frozen=True):
    error: ErrorBody


class PullOrder(Struct, frozen=True):
    model: str
    force: bool = False


class OutlookReading(Struct, frozen=True):
    fits: bool
    sentence: str


class PullReading(Struct, frozen=True, kw_only=True):
    """`id` is empty of a pull that no gateway does."""

    id: str
    model: str
    state: str
    repository: str | None = None
    reason: str | None = None
    code: str | None = None
    done_bytes: int | None = None
    total_bytes: int | None = None
    bytes_per_s: float | None = None
    seconds_left: float | None = None
    outlook: OutlookReading | None = None
    offered_as: str | None = None


class EntryReading(Struct, frozen=True, kw_only=True):
    source: str
    ids: tuple[str, ...]
    path: str
    size_bytes: int
    part_bytes: int = 0
    architecture: str | None = None
    quantization: str | None = None
    context_tokens: int | None = None
    has_template: bool = False
    abilities: tuple[str, ...] = ()
    problem: str | None = None
    state: str | None = None
    last_used_at: float | None = None
    configured: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.ids[0] if self.ids else self.source


class EntryListReading(Struct, frozen=True):
    models: tuple[EntryReading, ...]


class RemovedReading(Struct, frozen=True):
    source: str
    reclaimed_bytes: int
