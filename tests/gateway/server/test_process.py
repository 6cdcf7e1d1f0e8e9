"""A gateway that crashes in a loop remembers it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gateway.server.process import LIMIT, WINDOW_S, StartRecord, caution, recent

NOW = 1_800_000_000.0


def test_few_starts_in_short_time_give_caution() -> None:
    starts = [NOW - 10.0 * index for index in range(1, LIMIT + 1)]
    assert caution(starts[:-1], NOW) is None
    assert f"the last {LIMIT} starts within 30 min" in str(caution(starts, NOW))


def test_starts_in_far_future_do_not_count() -> None:
    """In the future by hours: from before somebody set it."""
    assert caution([NOW + 10 * WINDOW_S] * LIMIT, NOW) is None


@given(st.lists(st.floats(0, 3 * WINDOW_S), max_size=8))
def test_only_recent_starts_count(ages_s: list[float]) -> None:
    starts = [NOW - number for number in ages_s]
    young = sum(number < WINDOW_S for number in ages_s)
    assert len(recent(starts, NOW)) == young
    assert (caution(starts, NOW) is not None) == (young >= LIMIT)


def test_record_warns_after_limit_until_orderly_end(tmp_path: Path) -> None:
    path = tmp_path / "starts.json"
    first = StartRecord(path, NOW)
    assert (first.follows_crash, first.caution) == (False, None)
    for index in range(1, LIMIT):
        start = StartRecord(path, NOW + index)
        assert (start.follows_crash, start.caution) == (True, None)
    assert StartRecord(path, NOW + LIMIT).caution is not None
    careful = StartRecord(path, NOW + LIMIT + 1)
    assert careful.caution is not None
    careful.ended_in_order()
    after = StartRecord(path, NOW + LIMIT + 2)
    assert (after.follows_crash, after.caution) == (False, None)


def test_record_does_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "starts.json"
    for index in range(100):
        StartRecord(path, NOW + index * WINDOW_S / 2)
    assert path.stat().st_size < 200


def test_broken_record_counts_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "starts.json"
    path.write_text("{")
    assert StartRecord(path, NOW).caution is None
