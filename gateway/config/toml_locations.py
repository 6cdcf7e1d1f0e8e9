"""The line of each key in a TOML text."""

from __future__ import annotations

import tomllib
from typing import Final, TypeAlias

import tree_sitter_toml
from tree_sitter import Language, Node, Parser

# A path of keys and of indices of lists, from the top: ("models", "a", "aliases", 1).
Place: TypeAlias = tuple[str | int, ...]

_LANGUAGE: Final = Language(tree_sitter_toml.language())


class Locations:
    """The number of the line of each place in a valid TOML text; the first line is 1."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Place, int] = {}
        for node in Parser(_LANGUAGE).parse(text.encode()).root_node.named_children:
            if node.has_error:
                continue
            if node.type == "pair":
                self._add_pair((), node)
            elif node.type in ("table", "table_array_element"):
                name, *content = _without_comments(node)
                table = self._add_name((), name)
                for node_pair in content:
                    self._add_pair(table, node_pair)

    def line(self, place: Place) -> int | None:
        """The first line of a place. If the text lacks the place, the line of the nearest table or
        list around it; None: the text has none of these.
        """
        while place:
            if place in self._lines:
                return self._lines[place]
            place = place[:-1]
        return None

    def _add_name(self, table: Place, name: Node) -> Place:
        for key in _keys(name):
            table = (*table, key)
            self._lines.setdefault(table, _line(name))
        return table

    def _add_pair(self, table: Place, pair: Node) -> None:
        name, value = _without_comments(pair)
        self._add_value(self._add_name(table, name), value)

    def _add_value(self, place: Place, value: Node) -> None:
        if value.type == "inline_table":
            for pair in _without_comments(value):
                self._add_pair(place, pair)
        elif value.type == "array":
            for index, element in enumerate(_without_comments(value)):
                self._lines[(*place, index)] = _line(element)
                self._add_value((*place, index), element)


def _without_comments(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type != "comment"]


def _line(node: Node) -> int:
    return node.start_point.row + 1


def _keys(name: Node) -> list[str]:
    if name.type == "dotted_key":
        return [key for part in name.named_children for key in _keys(part)]
    # tomllib resolves escapes in quoted keys.
    return list(tomllib.loads(f"{_text(name)} = 0"))


def _text(node: Node) -> str:
    return (node.text or b"").decode()
