"""The page of the architecture tells each way as its conductor does."""

from __future__ import annotations

import ast
import re
from typing import Final

import pytest

from docs.rooms import CONDUCTORS
from tests.docs.fences import ROOT

_PAGE: Final = ROOT / "docs" / "architecture.md"
_WAY: Final = re.compile(r"^### (.+?)\n(.+?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_FILE: Final = re.compile(r"`((?:gateway|worker)/[\w/]+\.py)`")
_STEP: Final = re.compile(r"^(\d+)\. (.+?)(?=^\d+\. |^\s*$|\Z)", re.MULTILINE | re.DOTALL)


def _steps(text: str) -> list[str]:
    """The numbered list in a text, a line for each step."""
    return [f"{number}. {' '.join(step.split())}" for number, step in _STEP.findall(text)]


def _ways() -> dict[str, tuple[str, list[str]]]:
    """The conductor's file and the steps of each way on the page, by the way's name."""
    _, _, section = _PAGE.read_text("utf-8").partition("\n## Ways\n")
    section = re.split(r"^## ", section, maxsplit=1, flags=re.MULTILINE)[0]
    ways = {}
    for name, text in _WAY.findall(section):
        file = _FILE.search(text)
        assert file is not None, f"{name} names no conductor"
        ways[name] = (file[1], _steps(text))
    return ways


def test_page_has_the_ways_of_models() -> None:
    files = {file for file, _ in _ways().values()}
    conductors = {f"gateway/models/{name}.py" for name in ("load", "readings", "recovery")}
    assert conductors <= files <= set(CONDUCTORS)


@pytest.mark.parametrize("file", CONDUCTORS)
def test_conductor_numbers_its_steps(file: str) -> None:
    steps = _steps(ast.get_docstring(ast.parse((ROOT / file).read_text("utf-8"))) or "")
    assert [step.split(".")[0] for step in steps] == [str(n + 1) for n in range(len(steps))]
    assert len(steps) > 3


@pytest.mark.parametrize("name", _ways())
def test_steps_on_the_page_are_those_of_the_conductor(name: str) -> None:
    file, steps = _ways()[name]
    docstring = ast.get_docstring(ast.parse((ROOT / file).read_text("utf-8"))) or ""
    assert steps == _steps(docstring)
    assert [step.split(".")[0] for step in steps] == [str(n + 1) for n in range(len(steps))]
