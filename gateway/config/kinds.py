"""What a key's value may be: read, described in words, in JSON Schema, and written again.

A kind knows nothing of files; `read` gets what TOML, a flag or a variable gave.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, Protocol, TypeGuard

from msgspec import Struct

from gateway.system.sizes import LARGEST_BYTES, PERCENT_PATTERN, SIZE_PATTERN, parse_size
from gateway.system.times import TIME_PATTERN, format_time, parse_time

# Ten years: beyond that dates can't be told any more.
_LONGEST_S: Final = 315_360_000.0
_LARGEST: Final = (1 << 31) - 1
# Whatever reads JSON has it as it was written.
_LARGEST_EXACT: Final = (1 << 53) - 1


class UnexpectedError(ValueError):
    """A value is not of its kind; in a list, `index` says which one."""

    def __init__(self, value: object, index: int | None = None) -> None:
        super().__init__(value)
        self.value = value
        self.index = index


class Kind(Protocol):
    """One sort of value."""

    @property
    def expected(self) -> str:
        """What may stand there, to go after "expected"."""

    def read(self, value: object) -> Any:
        """The value as the program uses it.

        Raises:
            UnexpectedError: it is something else.
        """

    def schema(self) -> dict[str, Any]:
        """The same in JSON Schema."""

    def write(self, value: Any) -> str:
        """TOML that `read` takes back to the same value."""


class Text(Struct, frozen=True):
    """Any text; `what` says what it names."""

    what: str = "text"

    @property
    def expected(self) -> str:
        return self.what

    def read(self, value: object) -> str:
        if not _is_text(value):
            raise UnexpectedError(value)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}

    def write(self, value: str) -> str:
        return toml_text(value)


class Texts(Struct, frozen=True):
    """A list of texts."""

    what: str

    @property
    def expected(self) -> str:
        return f"a list of {self.what}"

    def read(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise UnexpectedError(value)
        for index, each in enumerate(value):
            if not _is_text(each):
                raise UnexpectedError(each, index)
        return tuple(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "string"}}

    def write(self, value: tuple[str, ...]) -> str:
        return f"[{', '.join(map(toml_text, value))}]"


class Switch(Struct, frozen=True):
    @property
    def expected(self) -> str:
        return "true or false"

    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise UnexpectedError(value)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def write(self, value: bool) -> str:
        return "true" if value else "false"


class Whole(Struct, frozen=True):
    """A whole number, from `least` to `most`."""

    least: int = 0
    most: int = _LARGEST

    @property
    def expected(self) -> str:
        return f"a whole number from {self.least} to {self.most}"

    def read(self, value: object) -> int:
        # True is an int in Python.
        if not isinstance(value, int) or isinstance(value, bool):
            raise UnexpectedError(value)
        if not self.least <= value <= self.most:
            raise UnexpectedError(value)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}

    def write(self, value: int) -> str:
        return str(value)


class Choice(Struct, frozen=True):
    """One of some whole numbers, or of some words."""

    values: tuple[int, ...] | tuple[str, ...]

    @property
    def expected(self) -> str:
        return " or ".join(map(self.write, self.values))

    def read(self, value: object) -> int | str:
        # 4.0 is equal to 4, and true to 1.
        for each in self.values:
            if type(value) is type(each) and value == each:
                return each
        raise UnexpectedError(value)

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.values)}

    def write(self, value: int | str) -> str:
        return toml_text(value) if isinstance(value, str) else str(value)


class Time(Struct, frozen=True):
    """Seconds from `least_s` to ten years, or text with a unit; `zero` says what 0 stands for."""

    least_s: float = 0.0
    zero: str | None = None

    @property
    def expected(self) -> str:
        zero = "" if self.zero is None else f", or 0 for {self.zero}"
        return f'a time of {self.least_s:g} s to 10 years, as 30, "30s" or "5m"{zero}'

    def read(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise UnexpectedError(value)
        try:
            seconds = parse_time(value) if isinstance(value, str) else float(value)
        except (ValueError, OverflowError):
            raise UnexpectedError(value) from None
        # Not a number is not between two.
        if not self.least_s <= seconds <= _LONGEST_S:
            raise UnexpectedError(value)
        return seconds

    def schema(self) -> dict[str, Any]:
        number = {"type": "number", "minimum": self.least_s, "maximum": _LONGEST_S}
        return {"anyOf": [number, {"type": "string", "pattern": TIME_PATTERN}]}

    def write(self, value: float) -> str:
        if (text := format_time(value)) is not None:
            return toml_text(text)
        return repr(value) if value else "0"


class Size(Struct, frozen=True):
    """Bytes, or text with a unit; where `automatic`, "auto" and a share of the memory too, and none
    is not enough.
    """

    automatic: bool = False

    @property
    def expected(self) -> str:
        if self.automatic:
            return '"auto", bytes above 0, a size as "12GB", or a share of the memory as "75%"'
        return 'bytes, or a size as "2GB"'

    def read(self, value: object) -> int | str:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise UnexpectedError(value)
        if self.automatic and value == "auto":
            return value
        try:
            # Of so much, the smallest share that can be written is something still.
            bytes_ = parse_size(value, LARGEST_BYTES if self.automatic else None)
        except ValueError:
            raise UnexpectedError(value) from None
        if self.automatic and not bytes_:
            raise UnexpectedError(value)
        return value

    def schema(self) -> dict[str, Any]:
        pattern = f"auto|{SIZE_PATTERN}|{PERCENT_PATTERN}" if self.automatic else SIZE_PATTERN
        number = {
            "type": "integer",
            "minimum": int(self.automatic),
            "maximum": LARGEST_BYTES,
        }
        return {"anyOf": [number, {"type": "string", "pattern": rf"^\s*({pattern})\s*$"}]}

    def write(self, value: int | str) -> str:
        return str(value) if isinstance(value, int) else toml_text(value)


class Arguments(Struct, frozen=True):
    """Names and values for somebody else, who knows what they mean: whatever JSON can say."""

    @property
    def expected(self) -> str:
        return "a table, as { enable_thinking = false }"

    def read(self, value: object) -> dict[str, Any]:
        if not isinstance(value, dict) or not _is_json(value):
            raise UnexpectedError(value)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "object"}

    def write(self, value: dict[str, Any]) -> str:
        return _toml_value(value)


def _is_json(value: object) -> bool:
    """Dates and times are not, nor infinities."""
    match value:
        case dict():
            return all(map(_is_json, value.values()))
        case list():
            return all(map(_is_json, value))
        case float():
            return math.isfinite(value)
        case int():
            return abs(value) <= _LARGEST_EXACT
        case _:
            return isinstance(value, str)


def _toml_value(value: object) -> str:
    match value:
        case dict() if value:
            pairs = (f"{toml_text(name)} = {_toml_value(each)}" for name, each in value.items())
            return f"{{ {', '.join(pairs)} }}"
        case dict():
            return "{}"
        case list():
            return f"[{', '.join(map(_toml_value, value))}]"
        case str():
            return toml_text(value)
        case _:
            return json.dumps(value)


def _is_text(value: object) -> TypeGuard[str]:
    """No path can have a NUL, and no name should."""
    return isinstance(value, str) and "\0" not in value


def toml_text(text: str) -> str:
    """A string in TOML. JSON's escapes are among TOML's, but DEL needs one there too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
