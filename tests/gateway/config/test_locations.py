"""Lines of keys, where TOML makes them hard to find. The rest is in test_config_properties."""

from __future__ import annotations

import tomllib

import pytest

from gateway.config.toml_locations import Locations, Place

TEXT = r"""
a.b."c.d" = 1 # e = 2
'x"y' = [ # ]
  1,

  [ 2, # three
    3 ],
  { k = 4, "\u006B2" = { k3 = 5 } }]
s = '''
t = 1
[u]
'''
[models."q\"w"] # [models.other]
d = 1979-05-27 07:32:00
[[list]]
n = 1
[[list]]
n = 2
[table . 'of' . tables]
z.y = {}
[table]
w = 1
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("a",), 2),
        (("a", "b", "c.d"), 2),
        (('x"y',), 3),
        (('x"y', 0), 4),
        (('x"y', 1), 6),
        (('x"y', 1, 1), 7),
        (('x"y', 2), 8),
        (('x"y', 2, "k2", "k3"), 8),
        (("s",), 9),
        (("models", 'q"w'), 13),
        (("models", 'q"w', "d"), 14),
        (("list",), 15),
        (("table", "of", "tables"), 19),
        (("table", "of", "tables", "z", "y"), 20),
        (("table", "w"), 22),
    ],
)
def test_places(place: Place, line: int) -> None:
    tomllib.loads(TEXT)
    assert Locations(TEXT).line(place) == line


def test_missing_place_has_line_of_its_table() -> None:
    locations = Locations("\n[models.a]\nb = 1\n")
    assert locations.line(("models", "a", "path")) == 2
    assert locations.line(("models", "a", "b", 7)) == 3
    assert locations.line(("moon",)) is None
