from __future__ import annotations

import json

import pytest

from gateway.http.openai.diagnostics import miss_reason
from gateway.why.compare import compare
from gateway.why.record import RequestRecord
from gateway.why.sections import Sketch
from tests.support.asked import asked, chat

TALK = ("What is a bulkhead?", "A wall.", "Of what?", "Of steel.", "And how thick?")
TOOLS = json.dumps([{"type": "function", "function": {"name": "a"}}])
BEFORE = asked(chat(*TALK))


def _arguments(**arguments: str) -> Sketch:
    return chat(*TALK, arguments=json.dumps(arguments))


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (asked(chat(*TALK), model="other"), "model_changed"),
        (asked(chat(*TALK), salt="other"), "prompt_cache_key_changed"),
        (asked(chat(*TALK, tools=TOOLS)), "tools_changed"),
        (asked(_arguments(reasoning_effort="low")), "reasoning_effort_changed"),
        (asked(_arguments(verbosity="low")), "verbosity_changed"),
        (asked(chat("In short: a wall.", *TALK[3:])), "context_compacted"),
        (asked(chat(*TALK, system="Be kind.")), "input_changed"),
        (asked(chat(*TALK[:2], "Of which?", *TALK[3:])), "input_changed"),
        (asked(chat(*TALK, "As a hand.", "And how high?")), None),
    ],
)
def test_difference_has_openais_name(now: RequestRecord, reason: str | None) -> None:
    assert miss_reason(compare(now, BEFORE)) == reason


def test_tokens_of_the_earlier_prompt_are_found_or_missed() -> None:
    before = asked(chat(*TALK), (1, 2, 3, 4))
    comparison = compare(asked(chat("Hm?"), (1, 2, 9), 128), before)
    assert (comparison.shared_tokens, comparison.missed_tokens) == (128, 2 * 64 + 32)
    assert comparison.found
    assert not compare(asked(chat("Hm?"), (1, 2, 9), 0), before).found
    assert compare(asked(chat("Hm?"), (1, 2, 9), None), before).found is None
