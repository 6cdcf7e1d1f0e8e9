"""Draws which room imports which, and lists the conductors: `python -m docs.rooms` writes
docs/rooms.md.

The rooms and their order are those of the layers in pyproject.toml, which `make check` enforces.
Rows and columns are in that order, so an import of a higher room would stand right of the diagonal.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "rooms.md"

# The files that tell the steps of a way in order, and call the files that do them.
CONDUCTORS: Final = (
    "gateway/http/generation/text_request.py",
    "gateway/http/passing/pass_on.py",
    "gateway/models/load.py",
    "gateway/models/readings.py",
    "gateway/models/recovery.py",
    "gateway/server/upgrade/upgrade.py",
    "worker/runtime/engine_loop.py",
)

_HEAD: Final = """\
# Rooms and their imports

`make rooms` draws this page from the code. A dot says that the room of its row imports the room of
its column. The rooms of a package stand in one order, the lowest first, so no dot is right of the
diagonal (`\\`). `make check` enforces the order.
"""
_CONDUCTORS_HEAD: Final = """\
## Conductors

Each of these files tells the steps of one way in order, and calls the files that do the steps.

| file | way |
|---|---|
"""


def main() -> None:
    PAGE.write_text(page(), "utf-8")


def page() -> str:
    """The text of docs/rooms.md."""
    drawings = (_drawing(package, rooms) for package, rooms in layers())
    return "\n".join([_HEAD, *drawings, _conductors()])


def layers() -> Iterator[tuple[str, list[str]]]:
    """Each package with its rooms, the lowest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            (package,) = contract["containers"]
            beside = (layer.split("|") for layer in reversed(contract["layers"]))
            yield package, [room.strip() for layer in beside for room in layer]


def _conductors() -> str:
    return _CONDUCTORS_HEAD + "".join(f"| `{file}` | {_title(file)} |\n" for file in CONDUCTORS)


def _title(file: str) -> str:
    """The first paragraph of a file's docstring."""
    docstring = ast.get_docstring(ast.parse((ROOT / file).read_text("utf-8"))) or ""
    return " ".join(docstring.partition("\n\n")[0].split()).rstrip(".:")


def _drawing(package: str, rooms: list[str]) -> str:
    graph = grimp.build_graph("gateway", "worker", "protocol", cache_dir=None)
    for room in rooms:
        graph.squash_module(f"{package}.{room}")
    width = max(map(len, rooms))
    lines = [f"## {package}", "", "```text"]
    for number, room in enumerate(rooms):
        imported = graph.find_modules_directly_imported_by(f"{package}.{room}")
        cells = [
            "\\" if column == number else "•" if f"{package}.{other}" in imported else "."
            for column, other in enumerate(rooms)
        ]
        lines.append(f"{room:<{width}}  {number + 1:>2}  {'  '.join(cells)}".rstrip())
    numbers = "".join(f"{number + 1:<3}" for number in range(len(rooms)))
    return "\n".join([*lines, f"{'':<{width}}      {numbers}".rstrip(), "```", ""])


if __name__ == "__main__":
    main()
