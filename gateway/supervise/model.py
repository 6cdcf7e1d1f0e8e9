"""A model as the operator configured it."""

from __future__ import annotations

from msgspec import Struct

from gateway.config.settings import ModelSettings


class Model(Struct, frozen=True):
    """`source` is what a worker loads: an absolute folder, or a repository in the cache."""

    id: str
    source: str
    settings: ModelSettings
