"""docs/states.md says what the code does."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from gateway.events import Kind
from gateway.supervise.lifecycle import State, printed

PAGE = (Path(__file__).parents[2] / "docs" / "states.md").read_text("utf-8")


def _rows(heading: str) -> dict[str, list[str]]:
    """The cells of a table below a heading, by each name in its first column."""
    section = PAGE.partition(heading)[2].partition("\n## ")[0]
    rows = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            names, *cells = (each.strip() for each in line.strip("|").split("|"))
            for name in names.replace("`", "").split(", "):
                rows[name] = cells
    return rows


def test_the_table_is_the_codes() -> None:
    assert PAGE.endswith("```\n" + "\n".join(printed()) + "\n```\n")


@pytest.mark.parametrize("state", State)
def test_every_state_is_explained(state: State) -> None:
    cells = _rows("# States of a model")[state]
    assert len(cells) == 4
    assert all(cells)


def test_every_event_is_explained() -> None:
    assert set(_rows("## Events")) == set(get_args(Kind))
