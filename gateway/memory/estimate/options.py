"""What a worker is told of a model beside its files, as far as it takes memory."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from gateway.config.model import Model
from gateway.config.model_folders import find_adapter, find_draft
from gateway.config.model_settings import ModelSettings
from gateway.memory.cards import sharing
from protocol.ranks import RankSplit


class Options(Struct, frozen=True):
    """The adapter and the draft model are folders. So many `ranks` compute it,
    `ranks_here` of them in the memory of this machine that the budget is of.
    """

    kv_bits: int | None = None
    adapter: Path | None = None
    draft: Path | None = None
    pictures: bool = False
    ranks: int = 1
    split: RankSplit = "tensor"
    ranks_here: int = 1


def options_of(model: Model) -> Options:
    return Options(
        model.settings.kv_bits,
        None if model.adapter is None else Path(model.adapter),
        None if model.draft is None else Path(model.draft),
        model.settings.pictures,
        len(model.settings.places),
        model.settings.split,
        sharing(model.settings.ranks_here),
    )


def options_in(settings: ModelSettings) -> Options:
    """Those of a model that nobody has looked for yet.

    Raises:
        ValueError: the adapter or the draft model isn't there; with a sentence for the operator.
    """
    return Options(
        settings.kv_bits,
        None if settings.adapter is None else Path(find_adapter(settings.adapter, ())),
        None if settings.draft_model is None else Path(find_draft(settings.draft_model, ())),
        settings.pictures,
        len(settings.places),
        settings.split,
        sharing(settings.ranks_here),
    )
