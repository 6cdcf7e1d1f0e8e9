"""The account of memory in sentences: why a model waits, why it can't be had."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.sizes import format_size
from gateway.dispatch.refusal import Refusal
from gateway.memory.admission import Admission, Claim, Refuse


def waiting(admission: Admission, claim: Claim) -> str:
    ending = [each.model_id for each in admission.holders if each.ending]
    text = (
        f"it needs {format_size(claim.needed_bytes)} and "
        f"{format_size(max(0, admission.free_bytes))} of {format_size(admission.usable_bytes)} "
        f"are free; {_who_holds(admission)}"
    )
    return f"{text}; {', '.join(ending)} is ending" if ending else text


def no_room(admission: Admission, refused: Refuse) -> Refusal:
    """Models that aren't pinned would go for it, so they are no reason."""
    pinned = [each for each in admission.holders if each.pinned]
    reasons = [
        f"{each.model_id} holds {format_size(each.committed_bytes)} (pinned)" for each in pinned
    ]
    if admission.stranded_bytes:
        reasons.append(f"{format_size(admission.stranded_bytes)} are stranded")
    because = f", as {', '.join(reasons)}" if reasons else ""
    remedy = "Unload what is pinned, or raise memory.budget" if pinned else "Raise memory.budget"
    return Refusal(
        "insufficient_memory",
        f"{refused.model_id!r} needs {format_size(refused.needed_bytes)}, even with a short "
        f"context, and at most {format_size(max(0, refused.possible_bytes))} of the budget of "
        f"{format_size(admission.budget_bytes)} can be had{because}. {remedy}, or take a smaller "
        f"model: `bulkhead estimate {refused.model_id}` has the parts.",
        lasting=True,
    )


def _who_holds(admission: Admission) -> str:
    return ", ".join(_holdings(admission)) or "nothing is held"


def _holdings(admission: Admission) -> Iterator[str]:
    for each in admission.holders:
        note = " (pinned)" if each.pinned else ""
        yield f"{each.model_id} holds {format_size(each.committed_bytes)}{note}"
    if admission.spare_bytes:
        yield f"the spare {format_size(admission.spare_bytes)}"
    if admission.stranded_bytes:
        yield f"{format_size(admission.stranded_bytes)} are stranded"
