"""A model as the operator configured it."""

from __future__ import annotations

from msgspec import Struct

from gateway.config.read import Configuration
from gateway.config.settings import ModelSettings


class Model(Struct, frozen=True):
    """`source` is what a worker loads: an absolute folder, or a repository in the cache."""

    id: str
    source: str
    settings: ModelSettings

    def same_for_workers(self, other: Model) -> bool:
        """Whether a worker of this one serves the other as well."""
        mine, others = self.settings, other.settings
        return (
            self.source == other.source
            and mine.python == others.python
            and mine.context_tokens == others.context_tokens
            and mine.max_concurrency == others.max_concurrency
        )


def models_of(configuration: Configuration) -> list[Model]:
    return [
        Model(model_id, configuration.located[model_id], settings)
        for model_id, settings in configuration.settings.models.items()
    ]
