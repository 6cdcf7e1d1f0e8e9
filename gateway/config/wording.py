"""How mistakes in a configuration are put."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.config.keys import HEADINGS, keys_of, label
from gateway.config.kinds import Key, toml_text
from gateway.config.locations import Place
from gateway.system.notation import nearest

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
