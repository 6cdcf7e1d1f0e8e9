from __future__ import annotations

import math

import pytest

from gateway.requests.use import parse_keep_alive


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        (300, 300.0),
        (1.5, 1.5),
        (-1, math.inf),
        ("0", 0.0),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("250ms", 0.25),
        ("-1", math.inf),
        ("-1m", math.inf),
    ],
)
def test_as_ollama_reads_it(value: float | str, seconds: float) -> None:
    assert parse_keep_alive(value) == seconds


@pytest.mark.parametrize("value", ["", "soon", "5 minutes", "5m later", "1d", float("nan")])
def test_invalid_keep_alive_is_refused(value: float | str) -> None:
    with pytest.raises(ValueError, match="keep_alive"):
        parse_keep_alive(value)
