"""How long a pull goes on, and how fast it says it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from gateway.library.fetch import Pace, Patience
from gateway.library.hub_process import Code, PullDeaths

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def test_pauses_double_up_to_a_minute_and_bytes_begin_anew() -> None:
    patience = Patience(1.0, 1800.0, 0.0)
    pauses = [patience.failed(float(now)) for now in range(8)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    patience.progressed(8.0)
    assert patience.failed(9.0) == 1.0


def test_it_ends_after_so_long_without_a_byte() -> None:
    patience = Patience(1.0, 100.0, 0.0)
    assert patience.failed(99.0) is not None
    patience.progressed(99.5)
    assert patience.failed(198.0) is not None
    assert patience.failed(198.0) is None, "the next attempt would be too late"


def test_wait_of_hub_is_respected_up_to_bound() -> None:
    patience = Patience(1.0, 1800.0, 0.0)
    assert patience.failed(0.0, 30.0) == 30.0
    assert patience.failed(1.0, 1e9) == 600.0
    assert patience.failed(2.0, 0.0) == 4.0


@given(st.lists(st.tuples(st.floats(0.01, 30.0), st.integers(-1000, 10_000))))
def test_a_rate_is_of_what_came_lately_and_never_negative(steps: list[tuple[float, int]]) -> None:
    pace, now, done = Pace(), 0.0, 0
    for seconds, change in steps:
        now += seconds
        done = max(0, done + change)
        pace.add(now, done)
        assert pace.bytes_per_s is None or pace.bytes_per_s >= 0
    assert pace.seconds_left(0) in (None, 0.0)


def test_a_steady_rate() -> None:
    pace = Pace()
    assert pace.bytes_per_s is None
    for second in range(40):
        # It was fast, long ago.
        pace.add(float(second), 1_000_000 + 100 * second if second else 0)
    assert pace.bytes_per_s == 100.0
    assert pace.seconds_left(500) == 5.0


def test_processes_that_die_without_a_byte_are_not_started_for_ever() -> None:
    deaths = PullDeaths()
    assert [deaths.may_restart(0) for _ in range(6)] == [True, True, True, True, False, False]
    assert deaths.may_restart(10)
    assert all(deaths.may_restart(10 + index) for index in range(1, 30))


def test_every_code_is_explained() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)) == set(get_args(Code))
