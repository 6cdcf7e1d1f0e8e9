"""The settings in force, and what a new configuration changes in a running gateway."""

from __future__ import annotations

from msgspec import Struct

from gateway.config.key import Section
from gateway.config.settings import Settings
from gateway.config.tables import GROUPS, MODELS, SECTIONS, keys_of, label


class Changes(Struct, frozen=True, kw_only=True):
    """Keys are named as in the file: `queue.depth`; those of a model without its table.

    `live` keys can be taken while requests are served, `restart` ones only by the next start. A
    group that has changed, in whatever way, is one of the live keys. Models come in the order of
    the new settings, `removed` ones in that of the old.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: dict[str, tuple[str, ...]] = {}
    live: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any((self.added, self.removed, self.changed, self.live, self.restart))


def changes(old: Settings, new: Settings) -> Changes:
    """How two settings differ in what they mean: 0.5 and "500ms" are one time."""
    changed = {
        model_id: keys
        for model_id, model in new.models.items()
        if model_id in old.models and (keys := _differing(old.models[model_id], model))
    }
    live: list[str] = []
    restart: list[str] = []
    for table, section in SECTIONS.items():
        for name in _differing(getattr(old, table), getattr(new, table)):
            taken = restart if keys_of(section)[name].key.restart else live
            taken.append(f"{table}.{name}")
    live += [f"{MODELS}.{name}" for name in _differing(old.discovery, new.discovery)]
    restart += [
        f"hosts.{name}"
        for name in {**old.hosts, **new.hosts}
        if old.hosts.get(name) != new.hosts.get(name)
    ]
    names = dict.fromkeys((*new.groups, *old.groups))
    live += [
        label((GROUPS, name)) for name in names if old.groups.get(name) != new.groups.get(name)
    ]
    return Changes(
        added=tuple(each for each in new.models if each not in old.models),
        removed=tuple(each for each in old.models if each not in new.models),
        changed=changed,
        live=tuple(live),
        restart=tuple(restart),
    )


def _differing(old: Section, new: Section) -> tuple[str, ...]:
    """The names of their keys that differ."""
    return tuple(name for name in keys_of(type(old)) if getattr(old, name) != getattr(new, name))


class Reloaded(Struct, frozen=True):
    """What a reload did. `added`, `removed` and the keys of `changed` are models; `applied` are
    keys that hold from now on, `needs_restart` those that wait for the gateway's next start.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: dict[str, tuple[str, ...]]
    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


class InForce:
    """Whoever needs a setting asks for it when it matters, so that a reload is felt at once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
