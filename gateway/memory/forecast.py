"""Forecasts the effects of a load, before the load is ordered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec import Struct

from gateway.config.model import Groups, groups_of, label_of
from gateway.config.model_folders import find_folder, locate
from gateway.config.model_settings import ModelSettings
from gateway.config.settings import Settings
from gateway.memory.admission import Admission
from gateway.memory.commands import estimate_of_command
from gateway.memory.fitting import Learned, Outline, whole
from gateway.memory.ledger import Admit, Claim, Decision, Evict, Ledger, Refuse
from gateway.memory.weights import EstimateError, options_in
from gateway.system.notation import format_size


class Forecast(Struct, frozen=True):
    """The effects that the load of a model would have; sizes are in bytes. `loads` are the floors
    of the models that would be loaded: the model, and those that are loaded together with it. All
    models together may have `usable_bytes`. The load `evicts` some models at once, and `displaces`
    more models after it has waited for `queue.max_wait_s`. `about` tells all these effects in
    sentences. `outline` is None if the model's files aren't understood.
    """

    model: str
    loads: dict[str, int]
    needed_bytes: int
    usable_bytes: int
    free_bytes: int
    fits: bool
    evicts: tuple[str, ...]
    displaces: tuple[str, ...]
    about: str
    outline: Outline | None = None


def forecast(
    admission: Admission, model_id: str, floors: dict[str, int], priority: int, now: float
) -> Forecast:
    """Forecast the load of a model. `floors` are the floors in bytes of the model, and of the
    models that are loaded together with it.
    """
    ledger = admission.ledger
    loads = {name: floor for name, floor in floors.items() if ledger.allocation(name) is None}
    at_once, later = admission.foresee(loads, priority, now)
    evicts = _evicted(at_once)
    fits = not any(isinstance(decision, Refuse) for decision in at_once)
    figures = Forecast(
        model_id,
        loads,
        sum(loads.values()),
        ledger.usable_bytes,
        max(0, ledger.free_bytes),
        fits,
        evicts,
        tuple(name for name in _evicted(later) if name not in evicts),
        about="",
    )
    admitted = any(isinstance(decision, Admit) for decision in at_once)
    sentences = " ".join(_sentences(figures, sorted(floors), admission, admitted=admitted))
    return msgspec.structs.replace(figures, about=sentences)


def _evicted(decisions: Iterable[Decision]) -> tuple[str, ...]:
    return tuple(decision.model_id for decision in decisions if isinstance(decision, Evict))


def _sentences(
    figures: Forecast, wanted: list[str], admission: Admission, *, admitted: bool
) -> Iterator[str]:
    """`wanted` are the model and the models that are loaded together with it."""
    if not figures.loads:
        allocations = (admission.ledger.allocation(text) for text in wanted)
        loading = any(
            allocation is not None and allocation.ready_at is None for allocation in allocations
        )
        how = "being loaded" if loading else "loaded already"
        yield f"{', '.join(wanted)} {'is' if len(wanted) == 1 else 'are'} {how}."
        return
    along = sorted(set(figures.loads) - {figures.model})
    needed, usable = format_size(figures.needed_bytes), format_size(figures.usable_bytes)
    if along:
        together = f"together {needed} of {usable}"
        yield f"Loading {figures.model} also loads {', '.join(along)}: {together}."
    else:
        yield f"Loading {figures.model} takes {needed} of {usable}."
    reserved_bytes = admission.ledger.reserved_beside(figures.loads)
    if reserved_bytes:
        yield f"{format_size(reserved_bytes)} more are kept for groups with reserve."
    if not figures.fits:
        yield "That doesn't fit, whatever is evicted."
    elif admitted:
        yield f"There is room for it: {format_size(figures.free_bytes)} are free."
    elif figures.evicts:
        yield f"It would evict {', '.join(figures.evicts)}."
    if figures.displaces:
        yield f"After a wait of queue.max_wait_s it would displace {', '.join(figures.displaces)}."
    elif figures.fits and not admitted and not figures.evicts:
        yield "It would wait until loans are given back, or until busy models may be displaced."


class Possible(NamedTuple):
    """The bytes that a model can have, and the bytes that pinned models and groups keep from it.
    `companions` are the floors of the models that are loaded together with it.
    """

    bytes: int
    reserved_bytes: int
    companions: dict[str, int]


def possible_beside(
    model: ModelSettings, settings: Settings, usable_bytes: int, learned: Learned
) -> Possible:
    """The bytes that a configured model could have. `usable_bytes` is the budget less the stranded
    bytes. Other pinned models count as loaded, with their floors, and groups keep their room.
    """
    model_id = next((text for text, known in settings.models.items() if known is model), "")
    ledger = _ledger(settings, usable_bytes, learned, without=model_id)
    possible_bytes = ledger.possible_for(model_id)
    companions = {
        companion: ledger.floors.get(companion, 0)
        for companion in sorted(ledger.groups.companions(model_id))
    }
    return Possible(max(0, possible_bytes), usable_bytes - possible_bytes, companions)


def misfits(settings: Settings, budget_bytes: int, learned: Learned) -> Iterator[tuple[str, str]]:
    """Names of groups that can't have the room they need, each with the reason."""
    ledger = _ledger(settings, budget_bytes, learned, without=None)
    for group in ledger.groups.all:
        if group.together:
            needed_bytes = sum(ledger.floors.get(model, 0) for model in group.models)
            possible_bytes = ledger.possible_among(group.models)
            if needed_bytes > possible_bytes:
                yield (
                    group.name,
                    f"its models need {format_size(needed_bytes)} together, and "
                    f"{format_size(max(0, possible_bytes))} of the budget of "
                    f"{format_size(budget_bytes)} can be had for them",
                )
    reserved_bytes = ledger.reserved_beside(())
    if reserved_bytes > ledger.possible_among(ledger.floors) and ledger.groups.reserving:
        names = " and ".join(label_of(group) for group in ledger.groups.reserving)
        yield (
            ledger.groups.reserving[-1].name,
            f"{format_size(reserved_bytes)} are to be kept for {names}, and the budget is "
            f"{format_size(budget_bytes)} with what is pinned",
        )


def _ledger(
    settings: Settings, usable_bytes: int, learned: Learned, *, without: str | None
) -> Ledger:
    ledger = Ledger(usable_bytes)
    ledger.arrange(Groups(groups_of(settings)))
    enter_pinned(ledger, settings, learned, without=without)
    return ledger


def enter_pinned(
    ledger: Ledger, settings: Settings, learned: Learned, *, without: str | None = None
) -> None:
    """Enter the floors of all members of groups, and all pinned models as loaded. The model
    `without` is left out of both. Blocks.
    """
    members = {name for group in ledger.groups.all for name in group.models}
    for name, model in settings.models.items():
        if name == without or not (model.pinned or name in members):
            continue
        floor_bytes = _floor_bytes(model, settings.memory.ordinary_tokens, learned)
        if name in members:
            ledger.floors[name] = floor_bytes
        if model.pinned:
            ledger.enter(Claim(name, floor_bytes, model.priority, 0.0, pinned=True))


def _floor_bytes(model: ModelSettings, ordinary_tokens: int, learned: Learned) -> int:
    """The floor of a model. 0 if its files can't be read or understood: `doctor` says why."""
    try:
        if model.command:
            return estimate_of_command(model, learned).bytes
        folder = find_folder(locate(model.path))
        _, estimate = whole(
            folder, model.context_tokens, ordinary_tokens, model.python, learned, options_in(model)
        )
        return estimate.floor_bytes
    except (ValueError, OSError, EstimateError):
        return 0
