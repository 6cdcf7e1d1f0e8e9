from __future__ import annotations

import time

import pytest

from gateway.system.log_lines import since_stamp


@pytest.mark.parametrize(
    ("text", "stamp"),
    [
        ("10m", "1970-01-11T23:50:00.000Z"),
        ("90s", "1970-01-11T23:58:30.000Z"),
        ("1.5h", "1970-01-11T22:30:00.000Z"),
        ("2d", "1970-01-10T00:00:00.000Z"),
        ("999d", "1970-01-01T00:00:00.000Z"),
        ("2026-01-31T12:30:00Z", "2026-01-31T12:30:00.000Z"),
        ("2026-01-31T12:30:00.5+02:00", "2026-01-31T10:30:00.500Z"),
        ("2026-01-31T12:30", "2026-01-31T11:30:00.000Z"),
        ("2026-01-31", "2026-01-30T23:00:00.000Z"),
    ],
)
def test_how_long_ago_or_a_time(monkeypatch: pytest.MonkeyPatch, text: str, stamp: str) -> None:
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    assert since_stamp(text, now=11 * 86400.0) == stamp


@pytest.mark.parametrize(
    "text",
    ["", "10", "m", "-5m", "10 m", "yesterday", "2026-13-01", "10w", "9999-12-31T23:59-23:59"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is neither a time such as .* nor how long ago"):
        since_stamp(text, now=0.0)
