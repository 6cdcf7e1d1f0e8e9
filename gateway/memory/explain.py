"""Sentences from the account of memory: why a model waits, and why it can't be loaded."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.model import Group, label_of
from gateway.memory.allocation import Allocation
from gateway.memory.check_room import CheckRoom
from gateway.memory.ledger import Claim, Ledger, Refuse, RefuseSequence
from gateway.system.notation import format_size
from gateway.system.refusal import Refusal


def waiting(ledger: Ledger, claim: Claim) -> str:
    """Why a model waits. Rivals and ending models come first. Numbers of bytes follow if too little
    is free, or if there is no other cause.
    """
    causes = [*_obstacles(ledger, claim.model_id)]
    if not causes or claim.needed_bytes > ledger.free_bytes:
        causes.append(
            f"it needs {format_size(claim.needed_bytes)} and "
            f"{format_size(max(0, ledger.free_bytes))} of {format_size(ledger.usable_bytes)} "
            f"are free; {_who_holds(ledger)}"
        )
    return "; ".join([*causes, *_group_remarks(ledger, claim.model_id)])


def _obstacles(ledger: Ledger, model_id: str) -> Iterator[str]:
    """Phrases on the rivals and the ending models that the model waits for."""
    for rival in ledger.rivals([model_id]):
        if (group := ledger.groups.swap_group_of(model_id, rival.model_id)) is not None:
            yield _place_of(rival, group)
    if ending := [allocation.model_id for allocation in ledger.allocations if allocation.ending]:
        yield f"{_and(ending)} {'is' if len(ending) == 1 else 'are'} ending"


def _group_remarks(ledger: Ledger, model_id: str) -> Iterator[str]:
    """Phrases on the memory that is needed beside the model's own, because of groups."""
    groups = ledger.groups
    companions = [
        companion
        for companion in sorted(groups.companions(model_id))
        if ledger.allocation(companion) is None
    ]
    if companions:
        floors_bytes = sum(ledger.floors.get(name, 0) for name in (model_id, *companions))
        verb = "is" if len(companions) == 1 else "are"
        yield f"{_and(companions)} {verb} loaded with it: together {format_size(floors_bytes)}"
    reserved_bytes = ledger.reserved_beside([model_id, *companions])
    if reserved_bytes:
        yield f"{format_size(reserved_bytes)} are kept for {_reserving(ledger)}"


def _place_of(rival: Allocation, group: Group) -> str:
    taken = f"{label_of(group)} has one model loaded at a time (swap), now {rival.model_id}"
    if rival.ending:
        return taken
    return (
        f"{taken}: it makes room once it is idle, or after queue.max_wait_s; "
        f"`bulkhead unload {rival.model_id}` unloads it now"
    )


def displaced(model_id: str, other_id: str, group: Group) -> str:
    """Why a model was evicted for another model of its group."""
    return (
        f"{other_id!r} has taken its place, as {label_of(group)} has one loaded at a time (swap); "
        f"the next request for it, or `bulkhead load {model_id}`, takes it back; to have both "
        "loaded, take one out of the group"
    )


def _reserved_from(ledger: Ledger, model_ids: set[str]) -> int:
    """Bytes that these models can't get because of groups: room that is kept, and the floors of
    loaded members with reserved room.
    """
    rivals = ledger.groups.rivals(model_ids)
    there = (
        allocation.floor_bytes
        for allocation in ledger.allocations
        if allocation.reserved
        and not (allocation.ending or allocation.pinned)
        and allocation.model_id not in model_ids | rivals
    )
    return ledger.reserved_beside(model_ids) + sum(there)


def _reserving(ledger: Ledger) -> str:
    return _and([label_of(group) for group in ledger.groups.reserving])


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def short(ledger: Ledger, model_id: str, requests: int) -> str | None:
    """Why requests wait for memory in a loaded model; None if no request waits."""
    allocation = ledger.allocation(model_id)
    if not requests or allocation is None:
        return None
    wanted_bytes = allocation.need.wanted_bytes - allocation.limit_bytes
    if wanted_bytes <= 0:
        return None  # The memory was lent just now. The worker uses it from its next step on.
    who = "1 request waits" if requests == 1 else f"{requests} requests wait"
    text = f"{who} for memory: {format_size(wanted_bytes)} more is wanted"
    if allocation.returning_bytes:
        return f"{text}, and {format_size(allocation.returning_bytes)} are being called back"
    return f"{text}, {format_size(max(0, ledger.free_bytes))} are free"


def returning(ledger: Ledger, model_id: str) -> str | None:
    """A phrase on the model's loan that is being called back; None if nothing is called back."""
    allocation = ledger.allocation(model_id)
    if allocation is None or not allocation.returning_bytes:
        return None
    return f"{format_size(allocation.returning_bytes)} of what it holds are being called back"


def at_best(ledger: Ledger, model_id: str, bytes_: int) -> str:
    """Why a loaded model can't get more than `bytes_`."""
    keeping = [
        f"{allocation.model_id} keeps {format_size(allocation.floor_bytes)} (pinned)"
        for allocation in ledger.allocations
        if allocation.pinned and not allocation.ending and allocation.model_id != model_id
    ]
    lost_bytes = ledger.stranded_bytes - ledger.undecided_bytes
    if lost_bytes > 0:
        keeping.append(f"{format_size(lost_bytes)} are stranded")
    because = f", as {', '.join(keeping)}" if keeping else ""
    return (
        f"At most {format_size(max(0, bytes_))} of the memory budget of "
        f"{format_size(ledger.budget_bytes)} can be had for it at present{because}."
    )


def no_room(ledger: Ledger, refused: Refuse) -> Refusal:
    """Why a model can't be admitted. Models that aren't pinned are no reason: they would be
    evicted.
    """
    pinned = [allocation for allocation in ledger.allocations if allocation.pinned]
    reasons = [
        f"{allocation.model_id} is promised {format_size(allocation.committed_bytes)} (pinned)"
        for allocation in pinned
    ]
    if ledger.stranded_bytes:
        reasons.append(f"{format_size(ledger.stranded_bytes)} are stranded")
    if reserved_bytes := _reserved_from(ledger, {refused.model_id, *refused.together}):
        reasons.append(f"{format_size(reserved_bytes)} are kept for {_reserving(ledger)}")
    because = f", as {', '.join(reasons)}" if reasons else ""
    remedy = "Unload what is pinned, or raise memory.budget" if pinned else "Raise memory.budget"
    along = ""
    if refused.together:
        along = f" together with {_and([repr(text) for text in refused.together])}"
    return Refusal(
        "insufficient_memory",
        f"{refused.model_id!r}{along} needs {format_size(refused.needed_bytes)}, even with a "
        f"short context, and at most {format_size(max(0, refused.possible_bytes))} of the budget "
        f"of {format_size(ledger.budget_bytes)} can be had{because}. {remedy}, or take a smaller "
        f"model: `bulkhead estimate {refused.model_id}` has the parts.",
        lasting=True,
    )


def no_room_for_sequence(ledger: Ledger, refused: RefuseSequence) -> Refusal:
    """Why a request that waits in a loaded model can't run any more."""
    return Refusal(
        "insufficient_memory",
        f"With this request {refused.model_id!r} needs {format_size(refused.needed_bytes)}. "
        f"{at_best(ledger, refused.model_id, refused.possible_bytes)} Shorten the request, or "
        "raise memory.budget.",
        lasting=True,
    )


def no_room_for_check(ledger: Ledger, check: CheckRoom) -> Refusal:
    """Why a check gets no memory."""
    if check.least_bytes > ledger.usable_bytes:
        remedy = "It is more than the whole budget: raise memory.budget, or take a smaller model."
    else:
        remedy = "For a check no model is unloaded: unload one, or try again later."
    return Refusal(
        "insufficient_memory",
        f"A check of {check.model_id!r} loads it into a process of its own, which needs "
        f"{format_size(check.least_bytes)}; {format_size(max(0, ledger.free_bytes))} of "
        f"{format_size(ledger.usable_bytes)} are free: {_who_holds(ledger)}. {remedy}",
        lasting=True,
    )


def _who_holds(ledger: Ledger) -> str:
    return ", ".join(_holdings(ledger)) or "nothing is held"


def _holdings(ledger: Ledger) -> Iterator[str]:
    for allocation in ledger.allocations:
        note = " (pinned)" if allocation.pinned else ""
        yield f"{allocation.model_id} is promised {format_size(allocation.committed_bytes)}{note}"
    if ledger.spare_bytes:
        yield f"the spare {format_size(ledger.spare_bytes)}"
    if ledger.check is not None and ledger.check_bytes:
        yield f"the check of {ledger.check.model_id} {format_size(ledger.check_bytes)}"
    if ledger.stranded_bytes:
        yield f"{format_size(ledger.stranded_bytes)} are stranded"
