"""The drawings of the architecture are true of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

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


def test_no_files_import_one_another_in_a_circle() -> None:
    """Also not in functions, nor for types alone."""
    imports = _imports()
    # A file that imports none of those left, or that none of them imports, is in no circle.
    left = set(imports)
    while out := {
        name
        for name in left
        if not imports[name] & left or not any(name in imports[other] for other in left)
    }:
        left -= out
    assert not {name: sorted(imports[name] & left) for name in sorted(left)}


def _imports() -> dict[str, set[str]]:
    """The modules that each module of the product names in its `import` statements."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in ("gateway", "worker", "protocol")
        for path in (ROOT / package).rglob("*.py")
    }
    return {
        name: {
            imported
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            for imported in _named_by(node)
            if imported in files
        }
        for name, path in files.items()
    }


def _named_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(module), names=names, level=0):
            yield module
            yield from (f"{module}.{alias.name}" for alias in names)
