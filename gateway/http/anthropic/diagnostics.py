"""Anthropic's `diagnostics`: why a prompt could not go on from that of an earlier message."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from gateway.http.generation.text_request import TextRequest
from gateway.why.changes import DifferenceKind
from gateway.why.compare import PromptComparison

Changed: TypeAlias = Literal["model_changed", "system_changed", "tools_changed", "messages_changed"]


class DiagnosticsOption(Struct):
    """With this the answer has `diagnostics`. `previous_message_id` is the id of an earlier answer;
    null in the first turn.
    """

    previous_message_id: str | None = None


class CacheMissReason(Struct, omit_defaults=True):
    """`cache_missed_input_tokens` of the earlier prompt could not be found again."""

    type: Changed | Literal["previous_message_not_found", "unavailable"]
    cache_missed_input_tokens: int | None = None


class Diagnostics(Struct):
    cache_miss_reason: CacheMissReason | None


def diagnose(asked: TextRequest, option: DiagnosticsOption | None) -> Diagnostics | None:
    """Compare the prompt with that of the earlier message, once it was tokenized. None: nothing was
    asked for, or both begin alike.
    """
    if option is None or option.previous_message_id is None:
        return None
    if asked.record is None:
        return Diagnostics(CacheMissReason("unavailable"))
    comparison = asked.memory.compare(asked.record, option.previous_message_id)
    if comparison is None:
        return Diagnostics(CacheMissReason("previous_message_not_found"))
    reason = miss_reason(comparison)
    return None if reason is None else Diagnostics(reason)


def miss_reason(comparison: PromptComparison) -> CacheMissReason | None:
    """Anthropic's reason, by the first difference; None: there is none."""
    if comparison.other_model:
        return CacheMissReason("model_changed", comparison.missed_tokens)
    if comparison.other_salt:
        return CacheMissReason("unavailable")
    if not comparison.changes:
        return None
    # Other arguments of the template have no name of their own here.
    kinds = [change.kind for change in comparison.changes if change.kind != "arguments"]
    if not kinds:
        return CacheMissReason("unavailable")
    return CacheMissReason(_changed(kinds[0]), comparison.missed_tokens)


def _changed(kind: DifferenceKind) -> Changed:
    if kind.startswith("tool"):
        return "tools_changed"
    return "system_changed" if kind.startswith("system") else "messages_changed"
