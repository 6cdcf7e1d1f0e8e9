"""Reasoning ends when its budget is used up, whoever goes on with it."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.answers import (
    AnswerPart,
    Reasoning,
    Text,
    merged,
)
from protocol.requests import Generate, Sampling, TextPrompt
from tests.support.templates import templated
from worker.structure.budget import ReasoningBudget, ReasoningTokens, reasoning_budget
from worker.text.families import find_format
from worker.text.stream import answer_stream

VOCABULARY = 12
TAGS = ReasoningTokens([1], [2], [2], [])
# In the style of harmony: channel, analysis, message; end, start, assistant.
CHANNEL, ANALYSIS, MESSAGE, END, START, ASSISTANT, FINAL = range(1, 8)
HARMONY = ReasoningTokens(
    [CHANNEL, ANALYSIS, MESSAGE],
    [END],
    [END, START, ASSISTANT, CHANNEL],
    [CHANNEL, ANALYSIS],
)
PROMPT = [9, 1, 9]


def _generated(budget: ReasoningBudget, wishes: list[int]) -> list[int]:
    """What a model writes that wants to write these tokens."""
    answer: list[int] = []
    for wish in wishes:
        # The next best thing is the token after it.
        wanted = [(wish - index) % VOCABULARY for index in range(VOCABULARY)]
        logits = mx.array([[-float(number) for number in wanted]])[:, :]
        allowed = budget(mx.array(PROMPT + answer), logits)
        answer.append(int(mx.argmax(allowed, axis=-1).item()))
    return answer


@pytest.mark.parametrize(
    ("budget", "opened", "wishes", "expected"),
    [
        (2, True, [5, 6, 7, 8], [5, 6, 2, 8]),
        (0, True, [5, 6, 7], [2, 6, 7]),
        (2, True, [5, 2, 7, 8, 9], [5, 2, 7, 8, 9]),
        (2, True, [5, 6, 2, 8], [5, 6, 2, 8]),
        (2, False, [5, 6, 7, 8], [5, 6, 7, 8]),
        (2, False, [5, 1, 6, 7, 8, 9], [5, 1, 6, 7, 2, 9]),
        (0, False, [1, 5, 6], [1, 2, 6]),
        # All blocks together.
        (2, True, [5, 2, 7, 1, 8, 9, 9], [5, 2, 7, 1, 8, 2, 9]),
        (1, True, [5, 2, 1, 9, 9], [5, 2, 1, 2, 9]),
    ],
)
def test_tags(budget: int, opened: bool, wishes: list[int], expected: list[int]) -> None:
    assert _generated(ReasoningBudget(TAGS, budget, len(PROMPT), opened=opened), wishes) == expected


def test_harmony_goes_to_another_channel() -> None:
    opening = [CHANNEL, ANALYSIS, MESSAGE]
    wishes = [*opening, 9, 9, 9, 9, 9, 9, FINAL, MESSAGE, 9]
    closing = [END, START, ASSISTANT, CHANNEL]
    budget = ReasoningBudget(HARMONY, 2, len(PROMPT), opened=False)
    assert _generated(budget, wishes) == [*opening, 9, 9, *closing, FINAL, MESSAGE, 9]
    # It would think again.
    again = [*opening, 9, END, START, ASSISTANT, *opening, 9, 9, 9, 9, 9]
    written = _generated(ReasoningBudget(HARMONY, 1, len(PROMPT), opened=False), again)
    assert written[:8] == [*opening, 9, *closing]
    assert written[8] != ANALYSIS
    nothing = _generated(ReasoningBudget(HARMONY, 0, len(PROMPT), opened=False), opening)
    assert nothing[0] == CHANNEL
    assert nothing[1] != ANALYSIS


@given(
    st.lists(st.integers(1, 8), max_size=20),
    st.integers(0, 6),
    st.booleans(),
    st.sampled_from([TAGS, HARMONY]),
)
@settings(deadline=None, max_examples=40)
def test_it_never_exceeds_its_budget_and_goes_on_the_same(
    wishes: list[int], allowance: int, opened: bool, marks: ReasoningTokens
) -> None:
    opened = opened and marks is TAGS
    budget = ReasoningBudget(marks, allowance, len(PROMPT), opened=opened)
    answer = _generated(budget, wishes)
    inside, used = opened, 0
    for index, token in enumerate(answer):
        before = inside
        if answer[: index + 1][-len(marks.start) :] == marks.start:
            inside = True
        elif token == marks.end[0]:
            inside = False
        used += before and inside and token != marks.start[-1]
    # A second start inside is a token as others are.
    starts = sum(token == marks.start[-1] for token in answer)
    assert used <= allowance + (starts if marks is TAGS else 0)
    assert _generated(budget, wishes) == answer


@pytest.mark.parametrize(
    ("budget", "answer", "expected"),
    [
        (0, "</think>hm</think> so", [Text("hm so")]),
        (0, "</think>\n</think>\n\nSo</think>", [Text("So")]),
        (5, "well</think>\nhm</think>so", [Reasoning("well"), Text("hmso")]),
        (None, "</think>hm</think> so", [Text("hm</think> so")]),
    ],
)
def test_a_second_end_of_reasoning_is_dropped(
    budget: int | None, answer: str, expected: list[AnswerPart], tmp_path: Path
) -> None:
    tokenizer = templated(tmp_path / "added", "", ("<think>", "</think>"))

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    generate = Generate("r", TextPrompt(""), Sampling(seed=0), parsed=True, reasoning_tokens=budget)
    stream = answer_stream(generate, ids("Why?<think>"), tokenizer, find_format(tokenizer))
    parts = [part for identifier in ids(answer) for part in stream.add(identifier)]
    assert merged(parts + stream.finish(complete=True)) == expected


def test_tags_of_ordinary_tokens_cant_be_forced(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tokenizers")
    ordinary = templated(folder / "ordinary", "<think> </think>")
    with pytest.raises(ValueError, match="ordinary text"):
        reasoning_budget([1], 5, ordinary, find_format(ordinary))
    thoughtless = templated(folder / "thoughtless", "")
    assert reasoning_budget([1], 5, thoughtless, find_format(thoughtless)) is None
    added = templated(folder / "added", "", ("<think>", "</think>"))
    assert reasoning_budget([1], 5, added, find_format(added)) is not None
