from __future__ import annotations

import json

import pytest

from gateway.http.anthropic.diagnostics import miss_reason
from gateway.why.compare import compare
from gateway.why.record import RequestRecord
from tests.support.asked import asked, chat

TALK = ("What is a bulkhead?", "A wall.", "Of what?")
TOOLS = json.dumps([{"type": "function", "function": {"name": "a"}}])
BEFORE = asked(chat(*TALK))


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (asked(chat(*TALK), model="other"), "model_changed"),
        (asked(chat(*TALK), salt="other"), "unavailable"),
        (asked(chat(*TALK, arguments='{"enable_thinking":true}')), "unavailable"),
        (asked(chat(*TALK, tools=TOOLS, system="Be kind.")), "tools_changed"),
        (asked(chat(*TALK, arguments="{}", system="Be kind.")), "system_changed"),
        (asked(chat(*TALK[:2], "Of which?")), "messages_changed"),
        (asked(chat(*TALK, "Of steel.", "And how thick?")), None),
    ],
)
def test_difference_has_anthropics_name(now: RequestRecord, reason: str | None) -> None:
    found = miss_reason(compare(now, BEFORE))
    assert (found and found.type) == reason
    if found is not None:
        has_tokens = found.cache_missed_input_tokens is not None
        assert has_tokens is (found.type != "unavailable")
