"""Models and groups of models, as they are configured."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct

from gateway.config.model_settings import ModelSettings
from gateway.config.read import Configuration
from gateway.config.settings import Settings


class Group(Struct, frozen=True):
    """A group of models. `together`: a load of one member loads all. `swap`: only one member is
    loaded at a time. `reserve`: loads of other models leave room for all members, or with `swap`
    for the largest member.
    """

    name: str
    models: tuple[str, ...]
    together: bool = False
    swap: bool = False
    reserve: bool = False


class Groups:
    """The groups, and the relations between models. `gateway.config.rules` makes sure that a model
    is in at most one group with `together`, and in at most one with `reserve`.
    """

    def __init__(self, groups: Iterable[Group] = ()) -> None:
        self.all = tuple(groups)
        self.reserving = tuple(each for each in self.all if each.reserve)
        self._companions = self._others(each for each in self.all if each.together)
        self._rivals = self._others(each for each in self.all if each.swap)
        self._reserved = frozenset(name for each in self.reserving for name in each.models)

    def companions(self, model_id: str) -> frozenset[str]:
        """The other models that are loaded together with this one."""
        return self._companions.get(model_id, frozenset())

    def companions_of(self, model_ids: Iterable[str]) -> frozenset[str]:
        """The companions of all of these models."""
        return frozenset().union(*map(self.companions, model_ids))

    def rivals(self, model_ids: Iterable[str]) -> frozenset[str]:
        """The models that may not be loaded beside one of these."""
        return frozenset().union(*(self._rivals.get(each, ()) for each in model_ids))

    def reserved(self, model_id: str) -> bool:
        """Whether room is kept for this model while it isn't loaded."""
        return model_id in self._reserved

    def between(self, model_id: str, other_id: str) -> Group | None:
        """The group with `swap` that has both models, if there is one."""
        both = (each for each in self.all if each.swap and {model_id, other_id} <= {*each.models})
        return next(both, None)

    def concerned(self, model_id: str) -> frozenset[str]:
        """The other models whose floors count in the decision on a load of this one: its
        companions, and all models for which room is kept.
        """
        return (self.companions(model_id) | self._reserved) - {model_id}

    @staticmethod
    def _others(groups: Iterable[Group]) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for group in groups:
            members = frozenset(group.models)
            for each in members:
                found[each] = found.get(each, frozenset()) | (members - {each})
        return found


def kept_bytes(group: Group, floors: dict[str, int], present: Collection[str]) -> int:
    """The bytes that a group with `reserve` keeps free, beside the memory of the members that are
    `present`.

    `floors` has the known floors by ids of models. Nothing is kept for members without one.
    """
    if group.swap:
        there = (floors.get(each, 0) for each in group.models if each in present)
        largest_bytes = max((floors.get(each, 0) for each in group.models), default=0)
        return largest_bytes - max(there, default=0)
    return sum(floors.get(each, 0) for each in group.models if each not in present)


def label_of(group: Group) -> str:
    """The name of a group in the configuration."""
    return f"groups.{group.name}"


# The keys that a worker gets only at its load. It gets the folders of files at its load, too.
_TOLD_AT_LOAD: Final = (
    "python",
    "command",
    "environment",
    "folder",
    "health",
    "context_tokens",
    "max_concurrency",
    "kv_bits",
    "guesses",
    "draft_tokens",
    "pictures",
    "local",
    "ranks",
    "backend",
    "split",
)


class Model(Struct, frozen=True):
    """A model that can be served. A worker loads `source`: an absolute folder, or a repository in
    the Hugging Face cache. `adapter` and `draft` are absolute folders. Of a model with a command
    `source` is the program.
    """

    id: str
    source: str
    settings: ModelSettings
    adapter: str | None = None
    draft: str | None = None

    @property
    def is_command(self) -> bool:
        """Whether a server of its own serves the model, and requests are passed on to it."""
        return bool(self.settings.command)

    @property
    def told(self) -> dict[str, str]:
        """The values that a worker gets only at its load, as texts to compare."""
        told = {key: getattr(self.settings, key) for key in _TOLD_AT_LOAD}
        told |= {"source": self.source, "adapter": self.adapter, "draft": self.draft}
        return {name: repr(value) for name, value in told.items()}

    def same_for_workers(self, other: Model) -> bool:
        """Whether a worker that has loaded this model can serve `other` as well."""
        return self.told == other.told


def models_of(configuration: Configuration) -> list[Model]:
    models = []
    for model_id, settings in configuration.settings.models.items():
        at = configuration.located[model_id]
        draft = at.draft_model if settings.guesses else None
        models.append(Model(model_id, at.path, settings, at.adapter, draft))
    return models


def groups_of(settings: Settings) -> list[Group]:
    return [
        Group(name, each.models, each.together, each.swap, each.reserve)
        for name, each in settings.groups.items()
    ]
