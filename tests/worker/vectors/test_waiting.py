"""Which texts are computed together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.vectors.jobs import WaitingTexts

_LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=30)


@given(
    jobs=st.lists(st.tuples(_LENGTHS, st.integers(-1, 1)), min_size=1, max_size=6),
    most=st.integers(1, 600),
    removed=st.integers(0, 5),
)
def test_every_text_is_taken_once_and_no_batch_is_too_large(
    jobs: list[tuple[list[int], int]], most: int, removed: int
) -> None:
    waiting = WaitingTexts()
    left: dict[int, set[int]] = {}
    for number, (lengths, priority) in enumerate(jobs):
        waiting.add(number, lengths, priority)
        left[number] = set(range(len(lengths)))
    waiting.remove(removed)
    left.pop(removed, None)
    while left:
        first = min(left, key=lambda number: (-jobs[number][1], number))
        assert waiting.longest() == max(jobs[first][0][place] for place in left[first])
        wanted, reach = waiting.longest(), waiting.reach()
        taken = waiting.next_batch(most, reach)
        longest = max(text_place.tokens for text_place in taken)
        assert len(taken) * longest <= most or len(taken) == 1
        # Who came first is not kept waiting by others that fit better.
        assert first in {place.job for place in taken}
        assert wanted <= longest <= reach
        assert longest <= 16 or min(place.tokens for place in taken) >= longest * 0.75
        for text_place in taken:
            assert jobs[text_place.job][0][text_place.place] == text_place.tokens
            left[text_place.job].remove(text_place.place)
            if not left[text_place.job]:
                del left[text_place.job]
    assert len(waiting) == 0
    assert waiting.next_batch(most, most) == []
    assert waiting.longest() == 0


def test_padding_is_bounded() -> None:
    waiting = WaitingTexts()
    waiting.add(0, [100, 98, 40], priority=0)
    assert [place.tokens for place in waiting.next_batch(2048, 2048)] == [98, 100]
    assert [text_place.tokens for text_place in waiting.next_batch(2048, 2048)] == [40]


def test_requests_share_a_batch() -> None:
    waiting = WaitingTexts()
    for number, tokens in enumerate([30, 25, 38, 39, 41]):
        waiting.add(number, [tokens], priority=0)
    assert waiting.reach() == 40
    assert [place.tokens for place in waiting.next_batch(2048, longest_tokens=38)] == [25, 30]
    assert [text_place.tokens for text_place in waiting.next_batch(2048, longest_tokens=40)] == [
        38,
        39,
    ]
    assert [place.tokens for place in waiting.next_batch(1, longest_tokens=54)] == [41]


def test_a_job_of_another_needs_not_wait_for_the_end_of_a_long_one() -> None:
    waiting = WaitingTexts()
    waiting.add(0, [200] * 100, 0, "a")
    waiting.next_batch(400, waiting.reach())
    waiting.add(1, [20], 0, "b")
    assert {place.job for place in waiting.next_batch(400, waiting.reach())} == {1}


@given(st.integers(1, 3), st.integers(20, 300), st.integers(20, 300))
def test_sharers_get_tokens_by_their_shares(share: int, mine: int, yours: int) -> None:
    waiting = WaitingTexts()
    waiting.add(0, [mine] * 2000, 0, "a", share)
    waiting.add(1, [yours] * 2000, 0, "b", 1)
    tokens = {0: 0, 1: 0}
    while sum(tokens.values()) < 40_000:
        for place in waiting.next_batch(600, waiting.longest()):
            tokens[place.job] += place.tokens
    if min(mine, yours) < 0.75 * max(mine, yours):
        assert abs(tokens[0] - share * tokens[1]) <= 1200 * share
