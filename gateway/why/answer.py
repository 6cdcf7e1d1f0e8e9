"""The answer to the question why a request began late, as clients of the gateway get it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from gateway.why.changes import PromptDifference
from gateway.why.divergence import Excerpt
from gateway.why.explain import Cause, explain
from gateway.why.record import Facts, RequestRecord
from gateway.why.records import Records
from gateway.why.sentences import advice, of_change, sentence
from gateway.why.wait import Wait, wait_of

_MOST_CHANGES: Final = 8


class EarlierRequest(Struct, frozen=True):
    """The earlier request of the same caller whose prompt shares the most with this one. `at` is a
    Unix time. Both prompts begin with `shared_tokens`, in whole blocks of 64.
    """

    id: str
    at: float
    prompt_tokens: int
    shared_tokens: int


class PromptChange(Struct, frozen=True):
    """A difference between the earlier prompt and this one. `section` is tools, tool NAME, system,
    message N (ROLE), text or template arguments; messages count from 1 behind the system prompt.

    The texts part at character `at` of the section, or within `within` characters behind it. `old`
    and `new` are the texts around that place; null if they were not remembered, or if the section
    has no text that parts.
    """

    kind: str
    section: str
    sentence: str
    at: int | None = None
    within: int = 0
    old: Excerpt | None = None
    new: Excerpt | None = None


class Why(Struct, frozen=True, kw_only=True):
    """Why a request began late. `cause` names why the prompt was computed anew, or the part of it
    that was, and `sentence` says that to people. `cached_tokens` is null until the answer has
    ended, `earlier` if no prompt of this caller shares anything with this one. `lost_tokens` of
    what both prompts share were not found.
    """

    id: str
    model: str
    key: str | None
    at: float
    prompt_tokens: int
    cached_tokens: int | None
    cause: str
    sentence: str
    advice: str | None
    earlier: EarlierRequest | None
    lost_tokens: int
    changes: list[PromptChange]
    wait: Wait


def why(record: RequestRecord, records: Records, facts: Facts, now: float) -> Why:
    """`now` is a Unix time."""
    finding = explain(record, records.before(record), facts)
    earlier = finding.earlier
    return Why(
        id=record.id,
        model=record.model,
        key=record.key,
        at=record.at,
        prompt_tokens=record.trace.prompt_tokens,
        cached_tokens=record.cached_tokens,
        cause=_name(finding.cause, finding.changes),
        sentence=sentence(finding),
        advice=advice(finding),
        earlier=None if earlier is None else _earlier(earlier, finding.shared_tokens),
        lost_tokens=finding.lost_tokens,
        changes=[_shown(change) for change in finding.changes[:_MOST_CHANGES]],
        wait=wait_of(record, facts, now),
    )


def _earlier(record: RequestRecord, shared_tokens: int) -> EarlierRequest:
    return EarlierRequest(record.id, record.at, record.trace.prompt_tokens, shared_tokens)


def _name(cause: Cause, changes: Iterable[PromptDifference]) -> str:
    """The cause, and behind a colon what was swapped: system_changed:clock."""
    swap = next((change.swap for change in changes if change.kind == cause), None)
    return cause if swap is None else f"{cause}:{swap}"


def _shown(change: PromptDifference) -> PromptChange:
    place = change.place
    if place is None:
        return PromptChange(change.kind, change.section, of_change(change))
    return PromptChange(
        change.kind,
        change.section,
        of_change(change),
        place.at,
        place.within,
        place.old,
        place.new,
    )
