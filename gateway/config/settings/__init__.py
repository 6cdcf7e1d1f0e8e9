"""Every configuration key: its kind, default and meaning; a file a part of the configuration.

Validation, `bulkhead config example`, the JSON schema and docs/configuration.md are all made from
these definitions.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct, field

from gateway.config.mistakes import Mistake
from gateway.config.settings.flags import Flags
from gateway.config.settings.gateway import GatewaySettings
from gateway.config.settings.groups import GroupSettings
from gateway.config.settings.hosts import HostSettings
from gateway.config.settings.library import HUGGING_FACE, DiscoverySettings, HubSettings
from gateway.config.settings.model import ModelSettings
from gateway.config.settings.requests import MailboxSettings, PromptCacheSettings, QueueSettings
from gateway.config.settings.section import Section
from gateway.config.settings.workers import MemorySettings, WorkersSettings

__all__ = [
    "HUGGING_FACE",
    "ConfigError",
    "DiscoverySettings",
    "Flags",
    "GatewaySettings",
    "GroupSettings",
    "HostSettings",
    "HubSettings",
    "MailboxSettings",
    "MemorySettings",
    "ModelSettings",
    "PromptCacheSettings",
    "QueueSettings",
    "Section",
    "Settings",
    "WorkersSettings",
]


_Name: TypeAlias = Annotated[str, Meta(min_length=1)]


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration. `models` is by id, `hosts` and `groups` by name; `discovery` are the
    keys in the models' table that are no models.
    """

    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    workers: WorkersSettings = field(default_factory=WorkersSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    prompt_cache: PromptCacheSettings = field(default_factory=PromptCacheSettings)
    mailbox: MailboxSettings = field(default_factory=MailboxSettings)
    hub: HubSettings = field(default_factory=HubSettings)
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)
    hosts: Annotated[
        dict[_Name, HostSettings], Meta(description="Other machines by their names.")
    ] = field(default_factory=dict)
    models: Annotated[dict[_Name, ModelSettings], Meta(description="The models by their ids.")] = (
        field(default_factory=dict)
    )
    groups: Annotated[
        dict[_Name, GroupSettings], Meta(description="Groups of models by their names.")
    ] = field(default_factory=dict)


class ConfigError(Exception):
    """Everything that is wrong with the configuration."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes
