"""The part of an answer's usage that follows from its text."""

from __future__ import annotations

from typing import Any


def of_text(usage: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's usage of a chat without what came from the prompt cache, and without guesses: how
    many are checked follows from times.
    """
    rest = {name: item for name, item in usage.items() if name != "prompt_tokens_details"}
    details = usage.get("completion_tokens_details") or {}
    rest["completion_tokens_details"] = {
        name: detail for name, detail in details.items() if not name.endswith("_prediction_tokens")
    }
    return rest
