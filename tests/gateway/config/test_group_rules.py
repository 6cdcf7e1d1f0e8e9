"""Groups in the configuration: what is taken, and what is wrong with the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.layers import ConfigError
from gateway.config.model import Group, groups_of
from gateway.config.model_settings import GroupSettings
from gateway.config.read import read_settings
from gateway.config.settings import Flags, Settings
from gateway.config.tables import changes

MODELS = """
[models.a]
path = "demo"
aliases = ["first"]
[models.b]
path = "demo"
[models.c]
path = "demo"
pinned = true
"""


def _read(folder: Path, text: str) -> Settings:
    path = folder / "config.toml"
    path.write_text(MODELS + text, "utf-8")
    return read_settings(Flags(config=path), {})


def test_a_group(tmp_path: Path) -> None:
    settings = _read(tmp_path, '[groups.x]\nmodels = ["a", "b"]\nswap = true\nreserve = true')
    assert settings.groups == {"x": GroupSettings(models=("a", "b"), swap=True, reserve=True)}
    assert groups_of(settings) == [Group("x", ("a", "b"), swap=True, reserve=True)]
    assert _read(tmp_path, "").groups == {}


def test_changed_groups_are_live_changes(tmp_path: Path) -> None:
    old = _read(tmp_path, '[groups.x]\nmodels = ["a", "b"]\nswap = true')
    new = _read(tmp_path, '[groups."x y"]\nmodels = ["a", "b"]\nswap = true')
    assert changes(old, new).live == ('groups."x y"', "groups.x")
    assert not changes(old, old)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("[groups]\nx = 1", "groups.x: expected a table, as in [groups.x]"),
        ("[groups.x]\nswap = true", "groups.x.models: it is missing; expected a list"),
        ('[groups.x]\nmodels = ["a"]\nswap = true', "a group has two models at least"),
        ('[groups.x]\nmodels = ["a", "b"]', "groups.x: it says nothing of its models: set"),
        ('[groups.x]\nmodels = ["a", "bb"]\nswap = true', 'no model "bb" has a table of its own'),
        ('[groups.x]\nmodels = ["a", "bb"]\nswap = true', 'did you mean "b"?'),
        ('[groups.x]\nmodels = ["first", "b"]\nswap = true', '"first" is an alias, of the id "a"'),
        ('[groups.x]\nmodels = ["a", "b", "a"]\nswap = true', '"a" is in it already'),
        (
            '[groups.x]\nmodels = ["a", "b"]\nswap = true\ntogether = true',
            "groups.x.swap: models that are loaded together can't exclude each other",
        ),
        ('[groups.x]\nmodels = ["a", "c"]\nswap = true', '"c" is pinned'),
        ('[groups.x]\nmodels = ["a", "b"]\nexclusive = true', "groups.x.exclusive: unknown key"),
        (
            '[groups.x]\nmodels = ["a", "b"]\ntogether = true\n'
            '[groups.y]\nmodels = ["b", "c"]\ntogether = true',
            'groups.y.models: "b" is in "x" too, and a model is in one group with together',
        ),
        (
            '[groups.x]\nmodels = ["a", "b"]\nreserve = true\n'
            '[groups.y]\nmodels = ["b", "c"]\nreserve = true',
            "in one group with reserve at most",
        ),
        (
            '[groups.x]\nmodels = ["a", "b"]\ntogether = true\n'
            '[groups.y]\nmodels = ["b", "a"]\nswap = true',
            '"b" and "a" are loaded together by one of "x" and "y", and exclude each other',
        ),
    ],
)
def test_mistakes(tmp_path: Path, text: str, mistake: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _read(tmp_path, text)
    assert mistake in str(caught.value)


def test_groups_that_overlap_as_they_may(tmp_path: Path) -> None:
    settings = _read(
        tmp_path,
        '[groups.x]\nmodels = ["a", "b"]\ntogether = true\n'
        '[groups.y]\nmodels = ["a", "b", "c"]\nreserve = true\n',
    )
    assert len(settings.groups) == 2
