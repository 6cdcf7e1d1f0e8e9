"""Refuses names that say in other words what the glossary has a word for: `python -m docs.words`.

The last column of docs/glossary.md lists the words that an entry replaces. No name in the code may
contain one. A loop variable is named after its item, a function is named by a verb with one
meaning, no two classes of the product have the same name, and a test says subject and behaviour.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("gateway", "worker", "protocol")
PACKAGES: Final = (*PRODUCT, "tests", "bench", "docs")

_LOOP_VARIABLES: Final = {"each", "at", "own"}
_VERBS: Final = {"take", "keep", "begin", "leave", "settle", "note", "told", "said", "own", "at"}
_NO_SUBJECT: Final = re.compile(r"test_(who|what|where|one|nobody)_")


class Finding(NamedTuple):
    """A name that is refused, with its place as FILE:LINE."""

    place: str
    reason: str


def main() -> int:
    findings = list(check(ROOT, replaced_words((ROOT / "docs" / "glossary.md").read_text("utf-8"))))
    for finding in findings:
        print(f"{finding.place}: {finding.reason}")
    return min(len(findings), 1)


def replaced_words(glossary: str) -> dict[tuple[str, ...], str]:
    """The words of the glossary's last column, each with the word that replaces it. A word of
    several parts, such as `last_words`, is a tuple of these.
    """
    replaced = {}
    for line in glossary.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4:
            for word in re.findall(r"`(\w+)`", cells[3]):
                replaced[tuple(word.split("_"))] = cells[0]
    return replaced


def check(root: Path, replaced: dict[tuple[str, ...], str]) -> Iterator[Finding]:
    classes: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            file = path.relative_to(root)
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                place = f"{file}:{_line(node)}"
                if isinstance(node, ast.ClassDef) and package in PRODUCT:
                    classes[node.name].append(place)
                for reason in _faults(node, replaced):
                    yield Finding(place, reason)
    for name, places in classes.items():
        for place in places[1:]:
            yield Finding(place, f"the class {name} is also at {places[0]}")


def _faults(node: ast.AST, replaced: dict[tuple[str, ...], str]) -> Iterator[str]:
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        for name in _LOOP_VARIABLES.intersection(_names(node.target)):
            yield f"the loop variable {name} is not named after its item"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if node.name.strip("_") in _VERBS:
            yield f"{node.name} has too many meanings: use a verb of the domain"
        if _NO_SUBJECT.match(node.name):
            yield f"{node.name} has no subject: say what it is about, and what that does"
    for name in _bound(node):
        for words in replaced:
            if _contains(_parts(name), words):
                yield f"{name}: the glossary says {replaced[words]}, not {'_'.join(words)}"


def _line(node: ast.AST) -> int:
    return _line(node.target) if isinstance(node, ast.comprehension) else getattr(node, "lineno", 1)


def _names(target: ast.expr) -> Iterator[str]:
    return (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _bound(node: ast.AST) -> Iterable[str]:
    """The names that a node gives: of a class, function, parameter, variable or attribute."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
            return [name]
        case ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
    return []


def _parts(name: str) -> list[str]:
    """The words of a name, in small letters: of `CausesOfDeath` and `causes_of_death` the same."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return [part for part in spaced.lower().split("_") if part]


def _contains(parts: list[str], words: tuple[str, ...]) -> bool:
    ends = range(len(words), len(parts) + 1)
    return any(tuple(parts[end - len(words) : end]) == words for end in ends)


if __name__ == "__main__":
    sys.exit(main())
