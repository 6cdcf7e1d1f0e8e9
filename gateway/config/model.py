"""A model as the operator configured it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gateway.config.groups import Group
from gateway.config.read import Configuration
from gateway.config.settings import ModelSettings, Settings

# What a worker is told at its load, beside the places of files.
_TOLD_AT_LOAD: Final = (
    "python",
    "context_tokens",
    "max_concurrency",
    "kv_bits",
    "pictures",
    "local",
    "ranks",
    "backend",
    "split",
)


class Model(Struct, frozen=True):
    """`source` is what a worker loads: an absolute folder, or a repository in the cache. The
    adapter and the draft model, if there are any, are absolute folders.
    """

    id: str
    source: str
    settings: ModelSettings
    adapter: str | None = None
    draft: str | None = None

    @property
    def draft_tokens(self) -> int:
        """How many tokens are guessed at a time; 0 without a draft model."""
        return 0 if self.draft is None else self.settings.draft_tokens

    @property
    def told(self) -> dict[str, str]:
        """What a worker is told only when it loads, as texts to compare."""
        told = {key: getattr(self.settings, key) for key in _TOLD_AT_LOAD}
        told |= {"source": self.source, "adapter": self.adapter}
        told |= {"draft": self.draft, "draft_tokens": self.draft_tokens}
        return {name: repr(value) for name, value in told.items()}

    def same_for_workers(self, other: Model) -> bool:
        """Whether a worker of this one serves the other as well."""
        return self.told == other.told


def models_of(configuration: Configuration) -> list[Model]:
    models = []
    for model_id, settings in configuration.settings.models.items():
        at = configuration.located[model_id]
        models.append(Model(model_id, at.path, settings, at.adapter, at.draft_model))
    return models


def groups_of(settings: Settings) -> list[Group]:
    return [
        Group(name, each.models, each.together, each.swap, each.reserve)
        for name, each in settings.groups.items()
    ]
