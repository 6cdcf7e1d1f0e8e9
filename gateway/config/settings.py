"""Every configuration key with its type, bounds and default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct, field

# Ten years: beyond that dates can't be told any more.
_LONGEST_S: Final = 315_360_000.0
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=_LONGEST_S)]
# At once is no time to load in, or to make a step.
Patience: TypeAlias = Annotated[float, Meta(ge=0.1, le=_LONGEST_S)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Tokens: TypeAlias = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the file's tables."""


class GatewaySettings(Section, frozen=True):
    host: str = "127.0.0.1"
    port: Port = 8642
    state_dir: str | None = None
    drain_s: Seconds = 30.0
    allow: tuple[str, ...] = ()


class MemorySettings(Section, frozen=True):
    """Sizes are bytes, or text with a unit; a percentage is of the machine's memory."""

    budget: int | str = "auto"
    headroom: int | str = "2GB"


class WorkersSettings(Section, frozen=True):
    spare: Count = 1
    load_timeout_s: Patience = 600.0
    restart_limit: Count = 3
    restart_window_s: Seconds = 60.0
    backoff_limit: Count = 5
    backoff_first_s: Seconds = 1.0
    backoff_longest_s: Seconds = 60.0
    breaker_retry_s: Seconds = 300.0
    heartbeat_timeout_s: Patience = 10.0
    stall_timeout_s: Patience = 60.0


class QueueSettings(Section, frozen=True):
    depth: Positive = 512
    deadline_s: Seconds = 300.0
    max_wait_s: Seconds = 60.0


class ModelSettings(Section, frozen=True):
    path: str
    aliases: tuple[str, ...] = ()
    pinned: bool = False
    preload: bool = False
    on_request: bool = True
    ttl_s: Seconds = 0.0
    priority: int = 0
    max_concurrency: Positive = 32
    context_tokens: Tokens = 32768
    python: str | None = None


class Settings(Section, frozen=True):
    """The whole configuration. `models` is by id."""

    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    workers: WorkersSettings = field(default_factory=WorkersSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    models: dict[str, ModelSettings] = field(default_factory=dict)


class ConfigError(Exception):
    """Everything that is wrong with the configuration, a sentence each."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class Flags(Struct, frozen=True, kw_only=True):
    """What the command line of `serve` may say; None where it says nothing."""

    config: Path | None = None
    host: str | None = None
    port: int | None = None
    state_dir: Path | None = None
    models: tuple[str, ...] = ()
    memory_budget: str | None = None
    spare: int | None = None
