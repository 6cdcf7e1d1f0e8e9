"""What can be had for a model before anything is loaded: for `estimate` and `doctor`."""

from __future__ import annotations

from typing import NamedTuple

from gateway.config.models import find_folder, locate
from gateway.config.settings import ModelSettings, Settings
from gateway.memory.estimate.fitting import whole
from gateway.memory.estimate.learned import Learned
from gateway.memory.estimate.options import options_in
from gateway.memory.estimate.weights import EstimateError


class Possible(NamedTuple):
    """Bytes that can be had for a model, and those that others keep since they are pinned."""

    bytes: int
    pinned_bytes: int


def possible_beside(
    model: ModelSettings, settings: Settings, usable_bytes: int, learned: Learned
) -> Possible:
    """`usable_bytes` is the budget less what is stranded. Pinned models count as loaded, with their
    floors, as they do once they are (`gateway.memory.ledger.Ledger.possible_bytes`).
    """
    pinned_bytes = sum(
        _floor_bytes(each, settings.memory.ordinary_tokens, learned)
        for each in settings.models.values()
        if each.pinned and each is not model
    )
    return Possible(max(0, usable_bytes - pinned_bytes), pinned_bytes)


def _floor_bytes(model: ModelSettings, ordinary_tokens: int, learned: Learned) -> int:
    """0 if nothing can be said of it, which `doctor` says better."""
    try:
        folder = find_folder(locate(model.path))
        _, found = whole(
            folder, model.context_tokens, ordinary_tokens, model.python, learned, options_in(model)
        )
        return found.floor_bytes
    except (ValueError, OSError, EstimateError):
        return 0
