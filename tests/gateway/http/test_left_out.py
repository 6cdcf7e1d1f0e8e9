"""Whose pictures are refused by a model that can't look at any."""

from __future__ import annotations

import pytest

from gateway.http.generation.pictures import newest


@pytest.mark.parametrize(
    ("roles", "place"),
    [
        ("", None),
        ("system", None),
        ("user", 0),
        ("user assistant", None),
        ("user assistant user", 2),
        ("user user", 1),
        ("user system", 0),
        ("user assistant tool", None),
    ],
)
def test_the_newest_message(roles: str, place: int | None) -> None:
    assert list(newest(roles.split())) == ([] if place is None else [place])
