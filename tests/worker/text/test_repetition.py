"""Answers that loop, beside answers that only repeat much."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.text.repetition import (
    LEAST_REPETITIONS,
    LEAST_TOKENS,
    LONGEST,
    RepetitionWatch,
    repeats,
)

DRAWS = random.Random(7)
BEFORE = [DRAWS.randrange(1000, 2000) for _ in range(300)]


def _gram(length: int) -> list[int]:
    return [DRAWS.randrange(10, 1000) for _ in range(length)]


def _looped(gram: list[int], tokens: int) -> list[int]:
    return (gram * (tokens // len(gram) + 1))[:tokens]


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64, 100, 129, 200, LONGEST])
def test_a_loop_is_found_at_its_bound(length: int) -> None:
    bound = max(LEAST_TOKENS, LEAST_REPETITIONS * length)
    loop = _looped(_gram(length), bound)
    assert repeats([*BEFORE, *loop])
    assert not repeats([*BEFORE, *loop[1:]]), "a token too few"


@pytest.mark.parametrize(
    "token_ids",
    [
        pytest.param([], id="nothing"),
        pytest.param([5] * 200, id="ha ha ha"),
        pytest.param(_looped([5, 6], 500), id="a list of zeros"),
        pytest.param(_looped(_gram(20), 600), id="a table of equal lines"),
        pytest.param(
            [token for line in range(200) for token in (*_looped([7, 8, 9], 12), 3000 + line)],
            id="a table whose lines are numbered",
        ),
        pytest.param(_looped(_gram(LONGEST + 1), 6000), id="longer than any that counts"),
        pytest.param([*_looped([5], 2000), 6], id="a loop that has ended"),
    ],
)
def test_much_that_is_the_same_is_no_loop(token_ids: list[int]) -> None:
    assert not repeats([*BEFORE, *token_ids])


@given(st.lists(st.integers(0, 3), max_size=3000))
def test_whatever_repeats_has_so_many_equal_tokens(token_ids: list[int]) -> None:
    found = repeats(token_ids)
    periods = (
        period
        for period in range(1, LONGEST + 1)
        if (length := max(LEAST_TOKENS, LEAST_REPETITIONS * period)) <= len(token_ids)
        and all(
            token_ids[-index] == token_ids[-index - period]
            for index in range(1, length - period + 1)
        )
    )
    assert found == any(True for _ in periods)


def test_an_answer_ends_only_if_that_was_asked_for() -> None:
    asked, other = RepetitionWatch(ends=True), RepetitionWatch(ends=False)
    ended = [asked.add(5) for _ in range(LEAST_TOKENS + 64)]
    assert ended.index(True) == LEAST_TOKENS - 1
    assert not any(other.add(5) for _ in range(LEAST_TOKENS + 64))
    assert other.repeats


def test_a_resumed_answer_ends_at_the_same_token() -> None:
    loop = [*BEFORE, *_looped(_gram(30), 2000)]
    whole = RepetitionWatch(ends=True)
    end = next(place for place, token in enumerate(loop) if whole.add(token))
    resumed = RepetitionWatch(ends=True)
    for token in loop[:500]:
        resumed.add(token)
    assert next(place for place, token in enumerate(loop[500:], 500) if resumed.add(token)) == end
