"""What can be had for a model before anything is loaded: for `estimate`, `doctor` and `check`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gateway.config.model import Groups, groups_of, label_of
from gateway.config.model_folders import find_folder, locate
from gateway.config.model_settings import ModelSettings
from gateway.config.settings import Settings
from gateway.memory.claim import Claim
from gateway.memory.estimate.fitting import whole
from gateway.memory.estimate.learned import Learned
from gateway.memory.estimate.options import options_in
from gateway.memory.estimate.weights import EstimateError
from gateway.memory.ledger import Ledger
from gateway.system.notation import format_size


class Possible(NamedTuple):
    """Bytes that can be had for a model, and those that others keep since they are pinned or of a
    group. `company` are the floors of those that are loaded with it.
    """

    bytes: int
    kept_bytes: int
    company: dict[str, int]


def possible_beside(
    model: ModelSettings, settings: Settings, usable_bytes: int, learned: Learned
) -> Possible:
    """`usable_bytes` is the budget less what is stranded. Pinned models count as loaded, with their
    floors, as they do once they are; and so do groups (`gateway.memory.ledger`).
    """
    own = next((each for each, known in settings.models.items() if known is model), "")
    ledger = _ledger(settings, usable_bytes, learned, without=own)
    possible_bytes = ledger.possible_for(own)
    company = {each: ledger.floors.get(each, 0) for each in sorted(ledger.groups.companions(own))}
    return Possible(max(0, possible_bytes), usable_bytes - possible_bytes, company)


def misfits(settings: Settings, budget_bytes: int, learned: Learned) -> Iterator[tuple[str, str]]:
    """Groups by their names that can't have the room they need, and why."""
    ledger = _ledger(settings, budget_bytes, learned, without=None)
    for group in ledger.groups.all:
        if group.together:
            needed_bytes = sum(ledger.floors.get(each, 0) for each in group.models)
            possible_bytes = ledger.possible_among(group.models)
            if needed_bytes > possible_bytes:
                yield (
                    group.name,
                    f"its models need {format_size(needed_bytes)} together, and "
                    f"{format_size(max(0, possible_bytes))} of the budget of "
                    f"{format_size(budget_bytes)} can be had for them",
                )
    kept_bytes = ledger.kept_beside(())
    if kept_bytes > ledger.possible_among(ledger.floors) and ledger.groups.reserving:
        names = " and ".join(label_of(each) for each in ledger.groups.reserving)
        yield (
            ledger.groups.reserving[-1].name,
            f"{format_size(kept_bytes)} are to be kept for {names}, and the budget is "
            f"{format_size(budget_bytes)} with what is pinned",
        )


def _ledger(
    settings: Settings, usable_bytes: int, learned: Learned, *, without: str | None
) -> Ledger:
    """With pinned models in it, but this one, and the floors of groups' members."""
    ledger = Ledger(usable_bytes)
    groups = Groups(groups_of(settings))
    members = {name for each in groups.all for name in each.models}
    ledger.arrange(groups)
    for name, each in settings.models.items():
        if name == without or not (each.pinned or name in members):
            continue
        floor_bytes = _floor_bytes(each, settings.memory.ordinary_tokens, learned)
        if name in members:
            ledger.floors[name] = floor_bytes
        if each.pinned:
            ledger.enter(Claim(name, floor_bytes, each.priority, 0.0, pinned=True))
    return ledger


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
