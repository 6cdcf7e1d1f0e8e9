"""The line of every key in a TOML text; `tomllib` gives none."""

from __future__ import annotations

import tomllib
from typing import Final, TypeAlias

import tree_sitter_toml
from tree_sitter import Language, Node, Parser

# The keys from the top, and indices of lists: ("models", "a", "aliases", 1).
Place: TypeAlias = tuple[str | int, ...]

_LANGUAGE: Final = Language(tree_sitter_toml.language())


class Locations:
    """Lines, from 1, of the places in a text that is valid TOML.

    What the grammar doesn't make out has the line of what it is in.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[Place, int] = {}
        for node in Parser(_LANGUAGE).parse(text.encode()).root_node.named_children:
            if node.has_error:
                continue
            if node.type == "pair":
                self._note_pair((), node)
            elif node.type in ("table", "table_array_element"):
                name, *content = _without_comments(node)
                table = self._note_name((), name)
                for pair in content:
                    self._note_pair(table, pair)

    def line(self, place: Place) -> int | None:
        """Where a place is first written, or else what it would be in."""
        while place:
            if place in self._lines:
                return self._lines[place]
            place = place[:-1]
        return None

    def _note_name(self, table: Place, name: Node) -> Place:
        for key in _keys(name):
            table = (*table, key)
            self._lines.setdefault(table, _line(name))
        return table

    def _note_pair(self, table: Place, pair: Node) -> None:
        name, value = _without_comments(pair)
        self._note_value(self._note_name(table, name), value)

    def _note_value(self, place: Place, value: Node) -> None:
        if value.type == "inline_table":
            for pair in _without_comments(value):
                self._note_pair(place, pair)
        elif value.type == "array":
            for index, element in enumerate(_without_comments(value)):
                self._lines[(*place, index)] = _line(element)
                self._note_value((*place, index), element)


def _without_comments(node: Node) -> list[Node]:
    return [each for each in node.named_children if each.type != "comment"]


def _line(node: Node) -> int:
    return node.start_point.row + 1


def _keys(name: Node) -> list[str]:
    if name.type == "dotted_key":
        return [key for part in name.named_children for key in _keys(part)]
    # Escapes in quoted keys are what tomllib takes them for.
    return list(tomllib.loads(f"{_text(name)} = 0"))


def _text(node: Node) -> str:
    return (node.text or b"").decode()
