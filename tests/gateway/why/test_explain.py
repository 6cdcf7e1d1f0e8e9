from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.why.explain import explain
from gateway.why.record import CacheEvent, Facts, RequestRecord
from gateway.why.sections import Sketch
from gateway.why.sentences import advice, sentence
from protocol.life import PromptCaching
from protocol.requests import TextPrompt
from tests.support.asked import CACHED, asked, chat, sketched

SAME = chat("What is a bulkhead?", "A wall.", "Of what?")
LONGER = chat("What is a bulkhead?", "A wall.", "Of what?", "Of steel.", "And how thick?")
NOTHING = Facts()
PLACES = PromptCaching("root", at_places=True, on_disk=True)


def _explained(
    before: dict[str, Any], now: dict[str, Any], facts: Facts = NOTHING, new: Sketch = SAME
) -> str:
    """The cause for a request at 100 s, with one before it at 0 s."""
    earlier = asked(SAME, **before)
    finding = explain(asked(new, **{"at": 100.0, **now}), [earlier], facts)
    assert finding.earlier is earlier
    assert sentence(finding)
    advice(finding)
    return finding.cause


def _happened(kind: Any, at: float = 50.0) -> Facts:
    return Facts((CacheEvent(at, kind, "why"),))


@pytest.mark.parametrize(
    ("cause", "before", "now", "facts"),
    [
        ("found", {}, {"cached_tokens": 192}, NOTHING),
        ("waiting", {}, {"cached_tokens": None}, NOTHING),
        ("model_changed", {}, {"fingerprint": "other"}, NOTHING),
        ("version_changed", {}, {"prompts": PromptCaching("other")}, NOTHING),
        ("not_cached", {}, {"prompts": PromptCaching()}, NOTHING),
        ("unfinished", {"cached_tokens": None, "first_token_s": None}, {}, NOTHING),
        ("unfinished", {"first_token_s": 101.0}, {}, NOTHING),
        ("quarantined", {}, {}, _happened("quarantined")),
        ("cleared", {}, {}, _happened("cleared")),
        ("evicted", {}, {}, _happened("cleared", at=-1.0)),
        ("evicted", {}, {}, _happened("cleared", at=102.0)),
        ("quarantined", {}, {}, _happened("quarantined", at=100.5)),
        ("slow_disk", {}, {"stored_tokens": 192}, NOTHING),
        ("ended", {}, {"incarnation": 2}, _happened("ended")),
        ("ended", {}, {"incarnation": 2}, NOTHING),
        ("off", {}, {}, Facts(off="it was wrong twice")),
        ("evicted", {}, {}, NOTHING),
        ("evicted", {}, {"cached_tokens": 64}, NOTHING),
        ("at_places", {}, {"prompts": PLACES, "cached_tokens": 64}, NOTHING),
        ("at_places", {}, {"prompts": PLACES, "cached_tokens": 64, "stored_tokens": 192}, NOTHING),
    ],
)
def test_loss_of_the_cache_is_named(
    cause: str, before: dict[str, Any], now: dict[str, Any], facts: Facts
) -> None:
    if now.get("prompts") is PLACES:
        before = {**before, "prompts": PLACES}
    assert _explained(before, now, facts) == cause


@pytest.mark.parametrize(
    ("cause", "before", "now"),
    [
        ("appended", {}, {"cached_tokens": 192}),
        ("appended", {"completion_tokens": 300}, {"cached_tokens": 448}),
        ("answer_changed", {"completion_tokens": 300}, {"cached_tokens": 192}),
        (
            "reasoning_dropped",
            {"completion_tokens": 300, "reasoning_tokens": 250},
            {"cached_tokens": 192},
        ),
        (
            "at_places",
            {"completion_tokens": 300, "prompts": PLACES},
            {"cached_tokens": 192, "prompts": PLACES},
        ),
    ],
)
def test_answer_that_is_computed_again_is_named(
    cause: str, before: dict[str, Any], now: dict[str, Any]
) -> None:
    marks = (1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert _explained(before, {"marks": marks, **now}, new=LONGER) == cause


@pytest.mark.parametrize(("days", "cause"), [(0, "template"), (1, "template_date")])
def test_template_that_writes_otherwise_is_named(days: int, cause: str) -> None:
    noon = time.mktime((2026, 11, 27, 12, 0, 0, 0, 0, -1))
    before = asked(SAME, (1, 2, 3, 4), at=noon)
    now = asked(SAME, (1, 8, 9, 10), 64, at=noon + 86_400.0 * days + 60.0)
    assert explain(now, [before], NOTHING).cause == cause


def test_other_files_of_a_model_are_named_whatever_their_tokenizer_makes() -> None:
    before = asked(SAME, (7, 8, 9))
    now = asked(SAME, (1, 2, 3), 0, at=9.0, fingerprint="other")
    assert explain(now, [before], NOTHING).cause == "model_changed"


def test_request_that_no_worker_had_is_not_compared() -> None:
    refused = asked(SAME, (), None, incarnation=0)
    assert explain(asked(SAME, at=9.0), [refused], NOTHING).cause == "first"


def test_change_that_costs_more_than_the_cache_lost_comes_first() -> None:
    other = chat("What is a mast?", "A wall.", "Of what?")
    before = asked(SAME, (1, 2, 3, 4, 5, 6))
    assert (
        explain(asked(other, (1, 2, 9), 64, at=9.0), [before], NOTHING).cause == "message_changed"
    )
    lost = asked(other, (1, 2, 3, 4, 5, 9), 0, at=9.0)
    assert explain(lost, [before], NOTHING).cause == "evicted"


def test_requests_of_other_models_and_salts_are_named_but_not_compared() -> None:
    now = asked(SAME, at=1.0)
    for fields, cause in (({"model": "n"}, "other_model"), ({"salt": "s"}, "other_salt")):
        finding = explain(now, [asked(SAME, **fields)], NOTHING)
        assert (finding.cause, finding.earlier, finding.changes) == (cause, None, ())
    assert explain(now, [], NOTHING).cause == "first"


def test_scored_prompt_is_named() -> None:
    drawn = sketched(TextPrompt("Score this."), prompt_logprobs=1)
    finding = explain(asked(drawn, at=1.0), [asked(drawn)], NOTHING)
    assert finding.cause == "scored"


def test_nearest_of_the_earlier_requests_is_compared() -> None:
    far = asked(SAME, (1, 8))
    near = asked(SAME, (1, 2, 8))
    newer = asked(SAME, (1, 9), at=5.0)
    finding = explain(asked(SAME, (1, 2, 3), 128, at=9.0), [far, near, newer], NOTHING)
    assert finding.earlier is near
    assert finding.shared_tokens == 128


MARKS = st.lists(st.integers(1, 3), max_size=6).map(tuple)
SKETCHES = st.sampled_from((SAME, LONGER, chat("What is a mast?"), sketched(TextPrompt("Hm."))))
RECORDS = st.builds(
    asked,
    SKETCHES,
    MARKS,
    st.one_of(st.none(), st.integers(0, 400)),
    at=st.floats(0, 100),
    incarnation=st.integers(1, 2),
    stored_tokens=st.integers(0, 400),
    prompts=st.sampled_from((CACHED, PLACES, PromptCaching())),
    model=st.sampled_from(("m", "n")),
)


@given(RECORDS, st.lists(RECORDS, max_size=4))
def test_any_requests_get_a_sentence(now: RequestRecord, earlier: list[RequestRecord]) -> None:
    finding = explain(now, earlier, _happened("ended"))
    assert sentence(finding).endswith(".")
    assert "{" not in sentence(finding)
    assert finding.earlier is None or finding.earlier.model == now.model
