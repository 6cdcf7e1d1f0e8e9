"""OpenAI's `prompt_cache_diagnostics`: how much of an earlier response's prompt was found again."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from gateway.http.generation.text_request import TextRequest
from gateway.why.changes import DifferenceKind, PromptDifference
from gateway.why.compare import PromptComparison

MissReason: TypeAlias = Literal[
    "model_changed",
    "prompt_cache_key_changed",
    "tools_changed",
    "reasoning_effort_changed",
    "verbosity_changed",
    "context_compacted",
    "input_changed",
]


class CacheMiss(Struct, tag_field="type", tag="cache_miss"):
    """`cache_missed_tokens` of the earlier prompt are behind the place where both part."""

    cache_missed_tokens: int
    reason: MissReason
    comparison_reusable_tokens: int


class CacheHit(Struct, tag_field="type", tag="cache_hit"):
    """The worker found all that both prompts share, and they don't part."""


class ComparisonNotFound(Struct, tag_field="type", tag="comparison_response_not_found"):
    """The earlier response isn't remembered."""


class Unavailable(Struct, tag_field="type", tag="unavailable"):
    """Nothing is remembered, or the prompts don't part, and yet the worker found less."""


CacheDiagnostics: TypeAlias = CacheMiss | CacheHit | ComparisonNotFound | Unavailable


def diagnose(asked: TextRequest, response_id: str) -> CacheDiagnostics:
    """Compare the prompt with that of an earlier response, once the answer has ended."""
    if asked.record is None:
        return Unavailable()
    comparison = asked.memory.compare(asked.record, response_id)
    if comparison is None:
        return ComparisonNotFound()
    reason = miss_reason(comparison)
    if reason is not None:
        return CacheMiss(comparison.missed_tokens, reason, comparison.shared_tokens)
    return CacheHit() if comparison.found else Unavailable()


_REASONS: Final[dict[DifferenceKind, MissReason]] = {
    "messages_summarized": "context_compacted",
    "tools_reordered": "tools_changed",
    "tools_added": "tools_changed",
    "tools_removed": "tools_changed",
    "tools_replaced": "tools_changed",
    "tool_changed": "tools_changed",
}


def miss_reason(comparison: PromptComparison) -> MissReason | None:
    """OpenAI's name for the first difference; None: there is none."""
    if comparison.other_model:
        return "model_changed"
    if comparison.other_salt:
        return "prompt_cache_key_changed"
    if not comparison.changes:
        return None
    change = comparison.changes[0]
    if change.kind == "arguments":
        return _of_arguments(change)
    return _REASONS.get(change.kind, "input_changed")


def _of_arguments(change: PromptDifference) -> MissReason:
    before, after = _verbosity(change.old), _verbosity(change.new)
    return "reasoning_effort_changed" if before == after else "verbosity_changed"


def _verbosity(arguments: str) -> object:
    decoded: Any = msgspec.json.decode(arguments) if arguments else {}
    return decoded.get("verbosity")
