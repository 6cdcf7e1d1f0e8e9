"""A model as the operator configured it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gateway.config.read import Configuration
from gateway.config.settings import ModelSettings

# What a worker is told at its load, beside the places of files.
_TOLD_AT_LOAD: Final = ("python", "context_tokens", "max_concurrency", "kv_bits", "pictures")


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

    def same_for_workers(self, other: Model) -> bool:
        """Whether a worker of this one serves the other as well."""
        return (
            self.source == other.source
            and self.adapter == other.adapter
            and self.draft == other.draft
            and self.draft_tokens == other.draft_tokens
            and all(
                getattr(self.settings, key) == getattr(other.settings, key) for key in _TOLD_AT_LOAD
            )
        )


def models_of(configuration: Configuration) -> list[Model]:
    models = []
    for model_id, settings in configuration.settings.models.items():
        at = configuration.located[model_id]
        models.append(Model(model_id, at.path, settings, at.adapter, at.draft_model))
    return models
