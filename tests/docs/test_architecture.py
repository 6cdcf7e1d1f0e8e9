"""The drawings of the architecture are true of the code."""

from __future__ import annotations

import re

from docs import rooms
from tests.docs.fences import PAGES, ROOT

_PACKAGES = ("gateway", "worker", "protocol", "tests")
_FILE = re.compile(r"\w[\w/]*\.py\b")


def test_the_rooms_are_drawn_as_they_are() -> None:
    assert rooms.PAGE.read_text("utf-8") == rooms.page(), "draw them again: make rooms"


def test_no_room_imports_a_higher_one() -> None:
    drawn = re.findall(r"^\w+ +(\d+)  (\S.*)$", rooms.page(), re.MULTILINE)
    assert len(drawn) > 30
    for number, cells in drawn:
        above = cells.split()[int(number) :]
        assert "•" not in above, cells


def test_each_file_that_a_page_names_is_there() -> None:
    """By its path, or by its path within the gateway."""
    missing = [
        f"{page.name}: {name}"
        for page in PAGES
        for name in _FILE.findall(page.read_text("utf-8"))
        if "/" in name and not ((ROOT / name).is_file() or (ROOT / "gateway" / name).is_file())
    ]
    assert not missing
