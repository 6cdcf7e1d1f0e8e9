"""Where a value came from, what is wrong with it, and how that is put in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct

from gateway.config.key import Key, toml_text
from gateway.config.tables import HEADINGS, keys_of, label
from gateway.config.toml_file import Place
from gateway.system.notation import nearest


class ValueSource(Struct, frozen=True):
    """`name` is a file, a variable or a flag; `line` is of a file and counts from 1."""

    kind: Literal["default", "file", "environment", "flag"]
    name: str = ""
    line: int | None = None

    def __str__(self) -> str:
        if self.kind == "default":
            return self.kind
        return self.name if self.line is None else f"{self.name}:{self.line}"


class Mistake(Struct, frozen=True):
    """`key` is empty where it can't be told, as in a file that isn't TOML."""

    source: ValueSource
    key: str
    message: str

    def __str__(self) -> str:
        parts = (str(self.source), self.key, self.message)
        return ": ".join(part for part in parts if part)


class ConfigError(Exception):
    """Everything that is wrong with the configuration."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes


_SHOWN_CHARACTERS: Final = 40
# The table of each key.
_HOMES: Final = {
    name: heading for heading, section in HEADINGS.items() for name in keys_of(section)
}


def sentence(message: str) -> str:
    """What is wrong at a place, as it stands behind its key."""
    return message if message.endswith((".", "?")) else f"{message}."


def no_table(place: Place) -> str:
    return f"expected a table, as in [{label(place)}]"


def missing(key: Key) -> str:
    return f"it is missing; expected {key.expected}"


def unexpected(key: Key, value: object) -> str:
    return f"expected {key.expected}, not {_shown(value)}"


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Of a "table" or a "key", with what was meant, if that can be told."""
    if name in _HOMES:
        return f"unknown here; it is a key of {_HOMES[name]}"
    if found := nearest(name, known):
        return f"unknown {what}; did you mean {found}?"
    if found := nearest(name, _HOMES):
        return f"unknown {what}; did you mean {found} in {_HOMES[found]}?"
    return f"unknown {what}; known are {', '.join(known)}"


def _shown(value: object) -> str:
    """A value as it was written, in short."""
    match value:
        case str():
            shown = toml_text(value)
        case bool():
            shown = str(value).lower()
        case dict():
            shown = "a table"
        case list():
            shown = "a list"
        case int() if abs(value) >= 10**_SHOWN_CHARACTERS:
            shown = "so large a number"
        case _:
            shown = str(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."
