"""Times as people write them."""

from __future__ import annotations

from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.key import UnexpectedError, read_value, time
from gateway.system.notation import format_time, parse_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("0.5", 0.5),
        ("500ms", 0.5),
        ("30s", 30.0),
        ("1.5m", 90.0),
        (" 2 h ", 7200.0),
        ("7d", 604800.0),
        ("1h30m", 5400.0),
        ("0", 0.0),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "5 minutes", "-5s", "1h30", "1e3", "5M", "٣s", "9" * 20])
def test_text_without_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_time(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(90.0, "90s"), (600.0, "10m"), (0.5, "500ms"), (86400.0, "1d"), (1e-9, None)],
)
def test_formatting(seconds: float, text: str | None) -> None:
    assert format_time(seconds) == text


@settings(deadline=None)
@given(st.floats(0, 315_360_000))
def test_formatted_time_is_read_back(seconds: float) -> None:
    text = format_time(seconds)
    assert text is None or parse_time(text) == seconds


def test_bounds_hold_for_text_too() -> None:
    bounded = Annotated[float, time("", least_s=0.1)]
    assert read_value(bounded, "100ms") == 0.1
    for value in ("99ms", "3651d", "0"):
        with pytest.raises(UnexpectedError):
            read_value(bounded, value)
