"""How a prompt differs from the one that its client compares it with."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gateway.requests.trace import MARK_TOKENS
from gateway.why.changes import PromptDifference, changes
from gateway.why.record import RequestRecord


class PromptComparison(Struct, frozen=True):
    """The differences of two prompts of one caller, in the order of the prompt. Of the earlier one
    `shared_tokens` are found again, and `missed_tokens` are not. With `found` the worker found all
    that they share; None: the worker hasn't reported yet.
    """

    other_model: bool
    other_salt: bool
    changes: Sequence[PromptDifference]
    shared_tokens: int
    missed_tokens: int
    found: bool | None


def compare(now: RequestRecord, before: RequestRecord) -> PromptComparison:
    """Compare a request with an earlier one of the same caller."""
    alike = now.model == before.model and now.salt == before.salt
    shared = now.shared_tokens(before) if alike else 0
    cached = now.cached_tokens
    return PromptComparison(
        now.model != before.model,
        now.salt != before.salt,
        changes(before.sketch, now.sketch),
        shared,
        max(0, before.trace.prompt_tokens - shared),
        None if cached is None else cached + MARK_TOKENS >= min(shared, now.trace.prompt_tokens),
    )
