"""The tables of the configuration file and their keys by name, and the changes between settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from gateway.config.key import Key, Section, key_of, read_value, toml_key, toml_text, written_value
from gateway.config.model_settings import (
    GroupSettings,
    HostSettings,
    ModelSettings,
    UpstreamSettings,
)
from gateway.config.settings import DiscoverySettings, Settings
from gateway.config.toml_locations import Place


class KeyDefinition(Struct, frozen=True):
    """A key with its name, type and default; a `required` key has no default."""

    name: str
    type: Any
    default: Any
    required: bool

    @property
    def key(self) -> Key:
        return key_of(self.type)

    def read(self, value: object) -> Any:
        """Make the value of the setting. Raises as `read_value`."""
        return read_value(self.type, value)

    @property
    def assumed(self) -> Any:
        """The value in place of a wrong or missing value: the default, or for a required key an
        empty value of its type.
        """
        nothing = () if isinstance(self.key.example, tuple) else ""
        return nothing if self.required else self.default

    def shown(self, value: Any) -> str:
        """A value as TOML writes it. For None, the words that say what None means."""
        return str(self.key.unset) if value is None else written_value(value)


@functools.cache
def keys_of(section: type[Section]) -> dict[str, KeyDefinition]:
    """A table's keys by their names."""
    keys = {}
    for field in msgspec.structs.fields(section):
        default = None if field.required else field.default
        if default is msgspec.NODEFAULT:
            default = field.default_factory()
        keys[field.name] = KeyDefinition(field.name, field.type, default, field.required)
    return keys


HOSTS: Final = "hosts"
UPSTREAMS: Final = "upstreams"
MODELS: Final = "models"
GROUPS: Final = "groups"
# Tables that hold further tables, whose names the user chooses.
NAMED: Final[dict[str, type[Section]]] = {
    HOSTS: HostSettings,
    UPSTREAMS: UpstreamSettings,
    MODELS: ModelSettings,
    GROUPS: GroupSettings,
}
# The tables with fixed names, in the order of the file.
SECTIONS: Final[dict[str, type[Section]]] = {
    field.name: field.type
    for field in msgspec.structs.fields(Settings)
    # The keys of DiscoverySettings are in the table [models].
    if field.name not in NAMED and field.type is not DiscoverySettings
}
TABLES: Final = (*SECTIONS, *NAMED)
# The headings of all tables, in the order of the file.
HEADINGS: Final[dict[str, type[Section]]] = {
    **{f"[{name}]": section for name, section in SECTIONS.items()},
    f"[{HOSTS}.NAME]": HostSettings,
    f"[{UPSTREAMS}.NAME]": UpstreamSettings,
    f"[{MODELS}]": DiscoverySettings,
    f"[{MODELS}.ID]": ModelSettings,
    f"[{GROUPS}.NAME]": GroupSettings,
}


def about(section: type[Section]) -> str:
    """The purpose of a table, in one line."""
    return " ".join((inspect.getdoc(section) or "").split())


def tables_of(settings: Settings) -> Iterator[tuple[Place, Section]]:
    """Every table of the settings with its place, in the order of the file."""
    for name in SECTIONS:
        yield (name,), getattr(settings, name)
    for host, keys in settings.hosts.items():
        yield (HOSTS, host), keys
    for name, upstream in settings.upstreams.items():
        yield (UPSTREAMS, name), upstream
    yield (MODELS,), settings.discovery
    for model_id, model in settings.models.items():
        yield (MODELS, model_id), model
    for name, group in settings.groups.items():
        yield (GROUPS, name), group


def label(path: Iterable[str | int]) -> str:
    """A place in the file as TOML writes it: `models."a".aliases`, `gateway.port`. Indices of lists
    are left out.
    """
    parts = [step for step in path if isinstance(step, str)]
    return ".".join(
        # Ids are always quoted, as most of them have to be.
        toml_text(part) if index == 1 and parts[0] == MODELS else toml_key(part)
        for index, part in enumerate(parts)
    )


class Changes(Struct, frozen=True, kw_only=True):
    """The changes that a new configuration makes. `added` and `removed` are ids of models.
    `changed` has the names of changed keys by ids of models.

    `live` and `restart` are other keys with their tables, as `queue.depth`. Live keys can be
    applied while requests are served, restart keys only by the next start. A changed group or
    upstream is a live key, a changed host a restart key. Models are in the order of the new
    settings; removed models are in the order of the old settings.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: dict[str, tuple[str, ...]] = {}
    live: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any((self.added, self.removed, self.changed, self.live, self.restart))


def changes(old: Settings, new: Settings) -> Changes:
    """The differences between two settings, by their values: 0.5 and "500ms" are the same time."""
    changed = {
        model_id: keys
        for model_id, model in new.models.items()
        if model_id in old.models and (keys := _differing(old.models[model_id], model))
    }
    live: list[str] = []
    restart: list[str] = []
    for table, section in SECTIONS.items():
        for name in _differing(getattr(old, table), getattr(new, table)):
            names = restart if keys_of(section)[name].key.restart else live
            names.append(f"{table}.{name}")
    live += [f"{MODELS}.{name}" for name in _differing(old.discovery, new.discovery)]
    restart += [
        f"hosts.{name}"
        for name in {**old.hosts, **new.hosts}
        if old.hosts.get(name) != new.hosts.get(name)
    ]
    for table, before, now in (
        (UPSTREAMS, old.upstreams, new.upstreams),
        (GROUPS, old.groups, new.groups),
    ):
        both = dict.fromkeys((*now, *before))
        live += [label((table, name)) for name in both if before.get(name) != now.get(name)]
    return Changes(
        added=tuple(model_id for model_id in new.models if model_id not in old.models),
        removed=tuple(model_id for model_id in old.models if model_id not in new.models),
        changed=changed,
        live=tuple(live),
        restart=tuple(restart),
    )


def _differing(old: Section, new: Section) -> tuple[str, ...]:
    """The names of the keys whose values differ."""
    return tuple(name for name in keys_of(type(old)) if getattr(old, name) != getattr(new, name))


class Reloaded(Struct, frozen=True):
    """The result of a reload. `added`, `removed` and the keys of `changed` are models; `applied`
    are keys that hold from now on, `needs_restart` those that wait for the gateway's next start.
    `names` are sentences about names that other models have now. `failed` models stay as they are
    until an order loads them.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: dict[str, tuple[str, ...]]
    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]
    names: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class InForce:
    """Holds the settings in force. Code reads a setting here at each use, so that a reload takes
    effect at once.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
