"""The definitions of the settings as tables to look keys up in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from gateway.config.kinds import Kind, toml_text
from gateway.config.settings import (
    DiscoverySettings,
    GatewaySettings,
    GroupSettings,
    HostSettings,
    HubSettings,
    Key,
    MailboxSettings,
    MemorySettings,
    ModelSettings,
    PromptCacheSettings,
    QueueSettings,
    Section,
    WorkersSettings,
)


class Definition(Struct, frozen=True):
    """A key with its name and default; `required`: it has none."""

    name: str
    key: Key
    default: Any
    required: bool

    @property
    def kind(self) -> Kind:
        return self.key.kind

    @property
    def expectation(self) -> str:
        """A sentence that says what may stand there."""
        return f"{self.kind.expected[0].upper()}{self.kind.expected[1:]}."


def _definitions(section: type[Section]) -> dict[str, Definition]:
    found = {}
    for each in msgspec.structs.fields(section):
        (key,) = each.type.__metadata__
        default = None if each.required else each.default
        if default is msgspec.NODEFAULT:
            default = each.default_factory()
        found[each.name] = Definition(each.name, key, default, each.required)
    return found


# The tables of one name, in the order of the file; models and hosts are tables of tables.
SECTIONS: Final[dict[str, type[Section]]] = {
    "gateway": GatewaySettings,
    "memory": MemorySettings,
    "workers": WorkersSettings,
    "queue": QueueSettings,
    "prompt_cache": PromptCacheSettings,
    "mailbox": MailboxSettings,
    "hub": HubSettings,
}
MODELS: Final = "models"
HOSTS: Final = "hosts"
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
GROUPS: Final = "groups"
TABLES: Final = (*SECTIONS, HOSTS, MODELS, GROUPS)
KEYS: Final = {name: _definitions(section) for name, section in SECTIONS.items()}
HOST_KEYS: Final = _definitions(HostSettings)
MODEL_KEYS: Final = _definitions(ModelSettings)
GROUP_KEYS: Final = _definitions(GroupSettings)
# They stand in the table of the models. A table of the same name is a model all the same.
DISCOVERY_KEYS: Final = _definitions(DiscoverySettings)


def definitions() -> Iterator[tuple[str, Definition]]:
    """Every key with its table, in the order of the file."""
    tables_of_tables = (
        (HOSTS, HOST_KEYS),
        (MODELS, DISCOVERY_KEYS),
        (MODELS, MODEL_KEYS),
        (GROUPS, GROUP_KEYS),
    )
    for table, keys in (*KEYS.items(), *tables_of_tables):
        for definition in keys.values():
            yield table, definition


def label(path: Iterable[str | int]) -> str:
    """A place in the file as it would be written: `models."a".aliases`, `gateway.port`."""
    parts = [each for each in path if isinstance(each, str)]
    return ".".join(
        # Ids are quoted always: most of them have to be.
        part
        if _BARE.fullmatch(part) and not (index == 1 and parts[0] == MODELS)
        else toml_text(part)
        for index, part in enumerate(parts)
    )
