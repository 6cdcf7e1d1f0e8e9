"""The lookup gives what a search of the whole text would give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.guesses.lookup import Lookup

LEAST, MOST = 3, 64
# Few different tokens, so that texts repeat themselves.
TEXTS = st.lists(st.integers(0, 3), max_size=60)


class Searched:
    """The same guesses, by a search of the whole text with each token."""

    def __init__(self, token_ids: list[int], prediction: list[int]) -> None:
        self.text = [*prediction, *token_ids]
        self.at, self.matched = (0, LEAST) if prediction else self._search()

    @property
    def next(self) -> int | None:
        return None if self.at is None else self.text[self.at]

    def add(self, token_id: int) -> None:
        follows = self.next == token_id
        self.text.append(token_id)
        if follows and self.at is not None:
            self.at, self.matched = self.at + 1, min(self.matched + 1, MOST)
        else:
            self.at, self.matched = self._search()

    def after(self, token_id: int, most: int) -> list[int]:
        if self.at is not None and self.next == token_id:
            at: int | None = self.at + 1
        else:
            at = _last_place(self.text, [*self.text, token_id][-LEAST:])
        if at is None:
            return []
        text = [*self.text, token_id]
        for place in range(at, at + most):
            text.append(text[place])
        return text[len(self.text) + 1 :]

    def _search(self) -> tuple[int | None, int]:
        at = _last_place(self.text, self.text[-LEAST:])
        if at is None:
            return None, 0
        lengths = range(LEAST, min(MOST, at) + 1)
        return at, max(
            length for length in lengths if self.text[at - length : at] == self.text[-length:]
        )


def _last_place(text: list[int], stretch: list[int]) -> int | None:
    """The place behind the last occurrence of `stretch` after which the text goes on."""
    if len(stretch) < LEAST:
        return None
    places = range(len(text) - 1, LEAST - 1, -1)
    return next((place for place in places if text[place - LEAST : place] == stretch), None)


@given(TEXTS, TEXTS, TEXTS, st.integers(0, 3), st.integers(0, 20))
def test_guesses_are_those_of_a_search(
    prompt: list[int], prediction: list[int], answer: list[int], following: int, most: int
) -> None:
    lookup, searched = Lookup(prompt, prediction), Searched(prompt, prediction)
    for token_id in [*answer, None]:
        assert (lookup.next, lookup.matched) == (searched.next, searched.matched)
        assert lookup.after(following, most)[0] == searched.after(following, most)
        if token_id is not None:
            lookup.add(token_id)
            searched.add(token_id)


@given(TEXTS, TEXTS, st.integers(0, 3), st.integers(0, 20))
def test_guesses_change_nothing(
    prompt: list[int], prediction: list[int], following: int, most: int
) -> None:
    lookup = Lookup(prompt, prediction)
    before = lookup.next, lookup.matched
    lookup.after(following, most)
    assert (lookup.next, lookup.matched) == before


def test_an_answer_that_is_expected_is_guessed_from_its_first_token_on() -> None:
    expected = list(range(100, 120))
    lookup = Lookup([1, 2, 3, 4], expected)
    for index, token_id in enumerate(expected[:-1]):
        assert lookup.next == token_id
        assert lookup.after(token_id, 5)[0][: 19 - index] == expected[index + 1 : index + 6]
        lookup.add(token_id)


def test_after_a_changed_line_the_expected_answer_goes_on() -> None:
    expected = list(range(100, 120))
    lookup = Lookup([1, 2, 3], expected)
    for token_id in [*expected[:5], 7, 8, *expected[7:10]]:
        lookup.add(token_id)
    assert lookup.after(expected[10], 4)[0] == expected[11:15]


def test_the_last_of_several_places_counts() -> None:
    lookup = Lookup([1, 2, 3, 50, 1, 2, 3, 60, 9, 1, 2, 3])
    assert lookup.next == 60
    assert lookup.after(60, 2) == ([9, 1], 4)


def test_a_long_match_counts_as_64() -> None:
    text = list(range(200))
    lookup = Lookup(text)
    for token_id in text[:100]:
        lookup.add(token_id)
    assert lookup.matched == MOST
    assert lookup.after(text[100], 3) == (text[101:104], MOST)


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 2, 3]])
def test_a_short_text_gives_no_guesses(text: list[int]) -> None:
    lookup = Lookup(text)
    assert lookup.next is None
    assert lookup.after(1, 5) == ([], 0)


def test_a_long_text_is_looked_through_with_the_tokens_that_follow() -> None:
    beginning = [1, 2, 3, 4, 5]
    lookup = Lookup([*beginning, *([9, 8] * 10_000)])
    for _ in range(12):
        lookup.add(7)
    for token_id in beginning[:3]:
        lookup.add(token_id)
    assert lookup.next == 4
