"""What a load would bring about, before anybody orders it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from gateway.memory.admission import Admission
from gateway.memory.decisions import Admit, Decision, Evict, Refuse
from gateway.memory.estimate.outline import Outline
from gateway.system.notation import format_size


class Forecast(Struct, frozen=True):
    """`loads` are the floors of the models that it takes, in bytes: those of its group that aren't
    loaded among them. They would have `usable_bytes` with all others. `evicts` are idle models that
    would go at once; `displaces` busy ones, if it waits for as long as `queue.max_wait_s`. `about`
    says all that. `outline` is None if the model's files aren't understood.
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
    """`floors` are its own and those of the models that are loaded with it, in bytes."""
    ledger = admission.ledger
    loads = {name: each for name, each in floors.items() if ledger.holder(name) is None}
    at_once, later = admission.foresee(loads, priority, now)
    evicts = _evicted(at_once)
    fits = not any(isinstance(each, Refuse) for each in at_once)
    found = Forecast(
        model_id,
        loads,
        sum(loads.values()),
        ledger.usable_bytes,
        max(0, ledger.free_bytes),
        fits,
        evicts,
        tuple(each for each in _evicted(later) if each not in evicts),
        about="",
    )
    admitted = any(isinstance(each, Admit) for each in at_once)
    sentences = " ".join(_sentences(found, sorted(floors), admission, admitted=admitted))
    return msgspec.structs.replace(found, about=sentences)


def _evicted(decisions: Iterable[Decision]) -> tuple[str, ...]:
    return tuple(each.model_id for each in decisions if isinstance(each, Evict))


def _sentences(
    found: Forecast, wanted: list[str], admission: Admission, *, admitted: bool
) -> Iterator[str]:
    """`wanted` are the model and those that are loaded with it."""
    if not found.loads:
        yield f"{', '.join(wanted)} {'is' if len(wanted) == 1 else 'are'} loaded already."
        return
    along = sorted(set(found.loads) - {found.model})
    needed, usable = format_size(found.needed_bytes), format_size(found.usable_bytes)
    if along:
        yield f"Loading {found.model} also loads {', '.join(along)}: together {needed} of {usable}."
    else:
        yield f"Loading {found.model} takes {needed} of {usable}."
    kept_bytes = admission.ledger.kept_beside(found.loads)
    if kept_bytes:
        yield f"{format_size(kept_bytes)} more are kept for groups with reserve."
    if not found.fits:
        yield "That doesn't fit, whatever goes."
    elif admitted:
        yield f"There is room for it: {format_size(found.free_bytes)} are free."
    elif found.evicts:
        yield f"It would evict {', '.join(found.evicts)}."
    if found.displaces:
        yield f"Having waited for queue.max_wait_s it would displace {', '.join(found.displaces)}."
    elif found.fits and not admitted and not found.evicts:
        yield "It would wait until loans are called back, or for what keeps its place."
