"""Who comes along with the first begins with it, and nobody waits long for that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.runtime.engine_loop import Gathering

MS = 1e-3


@given(
    gaps_ms=st.lists(st.floats(0, 20), max_size=30),
    arriving=st.integers(0, 3),
    most=st.integers(1, 8),
)
def test_it_ends_whatever_comes(gaps_ms: list[float], arriving: int, most: int) -> None:
    now, there = 100.0, 1
    gathering = Gathering(now, most)
    for gap_ms in gaps_ms:
        left_s = gathering.left_s(now, arriving)
        assert 0.0 <= left_s <= 50 * MS
        if gap_ms * MS > left_s or not left_s:
            break
        now += gap_ms * MS
        there += 1
        gathering.add(now)
    assert there <= most
    assert now <= 100.0 + 50 * MS + 1e-9
    assert gathering.left_s(now + 50 * MS, 1) == 0.0


def test_a_single_request_hardly_waits() -> None:
    gathering = Gathering(7.0, 8)
    assert gathering.left_s(7.0, 0) == pytest.approx(2 * MS)
    assert gathering.left_s(7.0 + 2 * MS, 0) == 0.0


def test_once_there_are_two_a_third_may_come() -> None:
    gathering = Gathering(7.0, 8)
    gathering.add(7.0 + 1 * MS)
    assert gathering.left_s(7.0 + 4 * MS, 0) == pytest.approx(7 * MS)
    assert gathering.left_s(7.0 + 12 * MS, 0) == 0.0


def test_requests_in_tokenization_are_waited_for() -> None:
    gathering = Gathering(7.0, 8)
    assert gathering.left_s(7.0 + 20 * MS, 1) == pytest.approx(30 * MS)
    assert gathering.left_s(7.0 + 51 * MS, 1) == 0.0


def test_as_many_as_are_computed_together_begin_at_once() -> None:
    gathering = Gathering(7.0, 2)
    gathering.add(7.0)
    assert gathering.left_s(7.0, 5) == 0.0
    assert Gathering(7.0, 1).left_s(7.0, 5) == 0.0
