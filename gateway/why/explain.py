"""The policy that says why a prompt was not found in the cache. No I/O.

It compares the prompt with the earlier prompt of the same caller that shares the most with it. If
the worker found less than both share, the cache has lost something. Otherwise the prompts part, and
their sections say where.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from gateway.requests.trace import MARK_TOKENS
from gateway.why.changes import DifferenceKind, PromptDifference, changes
from gateway.why.record import CacheEvent, CacheEventKind, Facts, RequestRecord

Cause: TypeAlias = (
    DifferenceKind
    | CacheEventKind
    | Literal[
        "waiting",
        "first",
        "other_model",
        "other_salt",
        "found",
        "appended",
        "short",
        "scored",
        "not_cached",
        "off",
        "model_changed",
        "version_changed",
        "unfinished",
        "slow_disk",
        "evicted",
        "at_places",
        "answer_changed",
        "template_date",
        "template",
    ]
)
# Of requests that share as much, so many are compared by their sections, the last ones.
_MOST_COMPARED: Final = 32
# An answer of fewer tokens is not worth a word if it is computed again.
_LONG_ANSWER: Final = 2 * MARK_TOKENS


class Explanation(NamedTuple):
    """The likely cause. `earlier` is the request that this one was compared with, `shared_tokens`
    what both prompts begin with, and `changes` all that differs between them. The worker could have
    found `lost_tokens` more. `reason` adds to the cause.
    """

    cause: Cause
    earlier: RequestRecord | None = None
    shared_tokens: int = 0
    lost_tokens: int = 0
    changes: Sequence[PromptDifference] = ()
    reason: str = ""


def explain(now: RequestRecord, earlier: Sequence[RequestRecord], facts: Facts) -> Explanation:
    """`earlier` are the requests of the same caller that came before, in order."""
    before = nearest(now, [other for other in earlier if _alike(now, other)])
    if before is None:
        return Explanation(_without_earlier(now, earlier))
    shared = now.shared_tokens(before)
    differences = changes(before.sketch, now.sketch)
    found = Explanation("waiting", before, shared, 0, differences)
    cached = now.cached_tokens
    if cached is None:
        return found
    usable = max(0, min(shared, now.trace.prompt_tokens - 1) // MARK_TOKENS * MARK_TOKENS)
    lost = max(0, usable - cached)
    found = found._replace(lost_tokens=lost)
    if now.sketch.scored and not cached:
        return found._replace(cause="scored")
    if now.trace.fingerprint != before.trace.fingerprint and not cached:
        return found._replace(cause="model_changed")
    # What the earlier prompt had beyond the place where both part is lost by the change.
    apart = before.trace.prompt_tokens - shared if differences else 0
    if lost and lost >= apart:
        cause, reason = _lost(now, before, facts)
        return found._replace(cause=cause, reason=reason)
    return found._replace(cause=_parted(now, before, found, cached))


def nearest(now: RequestRecord, earlier: Sequence[RequestRecord]) -> RequestRecord | None:
    """The earlier request whose prompt shares the most with this one, the latest of several. None:
    no prompt shares anything.
    """
    shared = {id(other): now.shared_tokens(other) for other in earlier}
    most = max(shared.values(), default=0)
    mine = {section.digest for section in now.sketch.sections}

    def likeness(other: RequestRecord) -> tuple[int, int]:
        same = sum(section.digest in mine for section in other.sketch.sections)
        return same, _same_beginnings(now, other)

    sharing = [other for other in earlier if shared[id(other)] == most][-_MOST_COMPARED:]
    alike = [(likeness(other), other) for other in sharing]
    if not most:
        alike = [(likes, other) for likes, other in alike if any(likes)]
    # Of several that are alike the last one counts.
    return max(reversed(alike), key=lambda each: each[0], default=(None, None))[1]


def _same_beginnings(now: RequestRecord, other: RequestRecord) -> int:
    """How many sections begin alike, though they differ: a clock may stand in each of them."""
    pairs = zip(now.sketch.sections, other.sketch.sections, strict=False)
    return sum(one.name == two.name and one.begin[:32] == two.begin[:32] for one, two in pairs)


def _alike(now: RequestRecord, other: RequestRecord) -> bool:
    """Whether the prompts of both are looked for in one cache, and a worker had the other."""
    sent = other.trace.incarnation > 0
    return sent and (other.model, other.salt) == (now.model, now.salt)


def _without_earlier(now: RequestRecord, earlier: Sequence[RequestRecord]) -> Cause:
    """The cause if no prompt of this model and salt shares anything."""
    if nearest(now, [other for other in earlier if other.model != now.model]) is not None:
        return "other_model"
    if nearest(now, [other for other in earlier if other.salt != now.salt]) is not None:
        return "other_salt"
    return "first"


def _lost(now: RequestRecord, before: RequestRecord, facts: Facts) -> tuple[Cause, str]:
    """Why the worker found less than both prompts share."""
    mine, theirs = now.trace, before.trace
    if not mine.prompts.root:
        return "not_cached", ""
    if facts.off:
        return "off", facts.off
    if mine.prompts.root != theirs.prompts.root:
        return "version_changed", ""
    computed_at, sent_at = before.computed_at, now.sent_at
    if computed_at is None or (sent_at is not None and computed_at > sent_at):
        return "unfinished", ""
    # What happens until the first token may send the prompt back to its begin.
    begin, end = before.sent_at or before.at, now.computed_at or now.at
    since = [event for event in facts.cache_events if begin <= event.at <= end]
    for kind in ("quarantined", "cleared"):
        if (event := _last(since, kind)) is not None:
            return event.kind, event.reason
    return _dropped(now, before, _last(since, "ended"))


def _dropped(
    now: RequestRecord, before: RequestRecord, ended: CacheEvent | None
) -> tuple[Cause, str]:
    """Why a worker didn't find what was cached and not taken away. A worker `ended` meanwhile."""
    mine = now.trace
    assert mine.usage is not None
    at_places, missed_tokens = mine.prompts.at_places, mine.usage.stored_tokens
    missed_tokens -= mine.usage.cached_tokens
    # Of stored blocks a model with places can use only those before a place.
    if missed_tokens > MARK_TOKENS and not at_places:
        return "slow_disk", ""
    if mine.incarnation != before.trace.incarnation:
        return "ended", "" if ended is None else ended.reason
    return "at_places" if at_places and mine.usage.cached_tokens else "evicted", ""


def _last(cache_events: Sequence[CacheEvent], kind: str) -> CacheEvent | None:
    return next((event for event in reversed(cache_events) if event.kind == kind), None)


def _parted(now: RequestRecord, before: RequestRecord, found: Explanation, cached: int) -> Cause:
    """Why the prompts part, as far as the worker found all that they share."""
    if found.changes:
        return found.changes[0].kind
    tokens = now.trace.prompt_tokens
    if tokens <= MARK_TOKENS:
        return "short"
    if found.shared_tokens + MARK_TOKENS <= before.trace.prompt_tokens and _parts_early(now, found):
        days = time.localtime(before.at)[:3], time.localtime(now.at)[:3]
        return "template_date" if days[0] != days[1] else "template"
    usage, added = before.trace.usage, now.sketch.others[len(before.sketch.others) :]
    answered = bool(added) and added[0].name == "assistant"
    if usage is not None and answered and usage.completion_tokens >= _LONG_ANSWER:
        whole = before.trace.prompt_tokens + usage.completion_tokens
        if cached + _LONG_ANSWER <= whole:
            if now.trace.prompts.at_places:
                return "at_places"
            return "reasoning_dropped" if usage.reasoning_tokens else "answer_changed"
    return "found" if cached + MARK_TOKENS >= tokens else "appended"


def _parts_early(now: RequestRecord, found: Explanation) -> bool:
    """Whether the prompts part before the end of the shorter one. Templates end a prompt with some
    tokens of their own, which an added message replaces.
    """
    assert found.earlier is not None
    shorter = min(now.trace.prompt_tokens, found.earlier.trace.prompt_tokens)
    return found.shared_tokens + 2 * MARK_TOKENS <= shorter
