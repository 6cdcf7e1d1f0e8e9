"""docs/operating.md and docs/specification.md say what the code does."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from gateway.models.lifecycle import State, printed
from gateway.system.events import Kind

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "operating.md").read_text("utf-8")
SPECIFICATION = (DOCS / "specification.md").read_text("utf-8")


def _rows(heading: str, page: str = PAGE) -> dict[str, list[str]]:
    """The cells of a table below a heading, by each name in its first column."""
    section = page.partition(heading)[2].partition("\n## ")[0]
    rows = {}
    for line in section.splitlines():
        if line.startswith(("| `", "| **`")):
            names, *cells = (word.strip() for word in line.strip("|").split("|"))
            for name in names.translate({ord("`"): None, ord("*"): None}).split(", "):
                rows[name] = cells
    return rows


def test_the_table_is_the_codes() -> None:
    assert SPECIFICATION.endswith("```\n" + "\n".join(printed()) + "\n```\n")


@pytest.mark.parametrize("state", State)
def test_every_state_is_explained(state: State) -> None:
    cells = _rows("## States of a model")[state]
    assert len(cells) == 4
    assert all(cells)


def test_every_event_is_explained() -> None:
    assert set(_rows("## Events", SPECIFICATION)) == set(get_args(Kind))


def test_the_guide_says_what_to_do() -> None:
    states = _rows("## States, and what to do")
    assert set(states) == {str(state) for state in State}
    events = _rows("## Events, and what to do")
    assert set(events) == set(get_args(Kind))
    assert all(all(cells) for cells in (*states.values(), *events.values()))
