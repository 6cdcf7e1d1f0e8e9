"""Models and groups of models, as they are configured."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec
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
        self.reserving = tuple(group for group in self.all if group.reserve)
        self._companions = self._others(group for group in self.all if group.together)
        self._rivals = self._others(group for group in self.all if group.swap)
        self._reserved = frozenset(
            model_id for group in self.reserving for model_id in group.models
        )

    def companions(self, model_id: str) -> frozenset[str]:
        """The other models that are loaded together with `model_id`."""
        return self._companions.get(model_id, frozenset())

    def companions_of(self, model_ids: Iterable[str]) -> frozenset[str]:
        """The companions of all of these models."""
        return frozenset().union(*map(self.companions, model_ids))

    def rivals(self, model_ids: Iterable[str]) -> frozenset[str]:
        """The models that may not be loaded beside any of `model_ids`."""
        return frozenset().union(*(self._rivals.get(model_id, ()) for model_id in model_ids))

    def reserved(self, model_id: str) -> bool:
        """Whether room is reserved for this model while it isn't loaded."""
        return model_id in self._reserved

    def swap_group_of(self, model_id: str, other_id: str) -> Group | None:
        """The group with `swap` that has both models, if there is one."""
        both = (
            group for group in self.all if group.swap and {model_id, other_id} <= {*group.models}
        )
        return next(both, None)

    def counted_with(self, model_id: str) -> frozenset[str]:
        """The other models whose floors count in the decision on a load of `model_id`: its
        companions, and all models for which room is reserved.
        """
        return (self.companions(model_id) | self._reserved) - {model_id}

    @staticmethod
    def _others(groups: Iterable[Group]) -> dict[str, frozenset[str]]:
        others: dict[str, frozenset[str]] = {}
        for group in groups:
            members = frozenset(group.models)
            for member in members:
                others[member] = others.get(member, frozenset()) | (members - {member})
        return others


def reserved_bytes(group: Group, floors: dict[str, int], present: Collection[str]) -> int:
    """The bytes that are reserved for a group with `reserve`, beside the memory of the members that
    are `present`. `floors` has the known floors by ids of models; nothing is reserved for members
    without a known floor.
    """
    if group.swap:
        present_floors = (
            floors.get(model_id, 0) for model_id in group.models if model_id in present
        )
        largest_bytes = max((floors.get(model_id, 0) for model_id in group.models), default=0)
        return largest_bytes - max(present_floors, default=0)
    return sum(floors.get(model_id, 0) for model_id in group.models if model_id not in present)


def label_of(group: Group) -> str:
    """The name of a group in the configuration."""
    return f"groups.{group.name}"


# The keys that a worker gets only at its load. It gets the folders of files at its load, too.
_LOAD_KEYS: Final = (
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
        """Whether a server of its own serves the model, and gets the requests."""
        return bool(self.settings.command)

    @property
    def load_values(self) -> dict[str, str]:
        """The values that a worker gets only at its load, as texts to compare."""
        values = {key: getattr(self.settings, key) for key in _LOAD_KEYS}
        values |= {"source": self.source, "adapter": self.adapter, "draft": self.draft}
        return {name: repr(value) for name, value in values.items()}

    @property
    def plain(self) -> Model:
        """The model without quantized caches, and without guesses."""
        settings = msgspec.structs.replace(self.settings, kv_bits=None, guesses=False)
        return msgspec.structs.replace(self, settings=settings, draft=None)

    def same_for_workers(self, other: Model) -> bool:
        """Whether a worker that has loaded this model can serve `other` as well."""
        return self.load_values == other.load_values


def models_of(configuration: Configuration) -> list[Model]:
    models = []
    for model_id, settings in configuration.settings.models.items():
        located = configuration.located[model_id]
        draft = located.draft_model if settings.guesses else None
        models.append(Model(model_id, located.path, settings, located.adapter, draft))
    return models


def groups_of(settings: Settings) -> list[Group]:
    return [
        Group(name, group.models, group.together, group.swap, group.reserve)
        for name, group in settings.groups.items()
    ]
