"""The description of a configuration key: bounds for msgspec, and words for people.

The functions `text`, `whole` and so on make the last annotation of a setting's type. A setting that
is a float is a time in seconds; a file may also write a time as text with a unit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct

from gateway.system.notation import (
    LARGEST_BYTES,
    PERCENT_PATTERN,
    SIZE_PATTERN,
    format_time,
    parse_size,
    parse_time,
)

# Ten years: the date at which a longer time ends could be out of range.
_LONGEST_S: Final = 315_360_000.0
_LARGEST: Final = (1 << 31) - 1
# The largest integer that every reader of JSON reads exactly.
_LARGEST_EXACT: Final = (1 << 53) - 1
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_AT_ELEMENT: Final = re.compile(r" - at `\$\[(\d+)\][^`]*`$")

# A path can't have a NUL, and a name should not.
Text: TypeAlias = Annotated[str, Meta(pattern="^[^\\u0000]*$")]
# A number of bytes, or text with a unit.
Size: TypeAlias = (
    Annotated[int, Meta(ge=0, le=LARGEST_BYTES)]
    | Annotated[str, Meta(pattern=rf"^\s*({SIZE_PATTERN})\s*$")]
)
# A size above 0, a share of the memory, or "auto".
Budget: TypeAlias = (
    Annotated[int, Meta(ge=1, le=LARGEST_BYTES)]
    | Annotated[str, Meta(pattern=rf"^\s*(auto|{SIZE_PATTERN}|{PERCENT_PATTERN})\s*$")]
)


class UnexpectedError(ValueError):
    """A key doesn't accept `value`. `index` is the index of `value` in a list, or its name in a
    table; None: the value is the whole value of the key. `expected` describes the accepted values;
    None: those of the key.
    """

    def __init__(
        self, value: object, index: int | str | None = None, expected: str | None = None
    ) -> None:
        super().__init__(value)
        self.value = value
        self.index = index
        self.expected = expected


# A whole number. A union takes no bounds, so these are on the number.
Count: TypeAlias = Annotated[int, Meta(ge=1, le=_LARGEST)]


class Key(Struct, frozen=True):
    """The description of a key: its meaning, and the values that it accepts.

    `example` is a valid value, given if the default is empty or None. `unset` says what None means.
    `restart`: the running gateway can't apply a new value. `prepare` converts the value in the file
    to the value of the setting. It raises ValueError for mistakes that types, bounds and patterns
    don't find.
    """

    about: str
    expected: str
    example: str | int | tuple[str, ...] | None = None
    unset: str | None = None
    restart: bool = False
    prepare: Callable[[Any], Any] | None = None

    @property
    def expectation(self) -> str:
        """A sentence that describes the accepted values."""
        return f"{self.expected[0].upper()}{self.expected[1:]}."


def text(about: str, what: str, **details: Any) -> Meta:
    """The annotation of a `Text`. `what` describes the accepted values."""
    return _meta(Key(about, what, **details))


def texts(about: str, what: str, **details: Any) -> Meta:
    """The annotation of a tuple of `Text`. `what` describes the elements."""
    return _meta(Key(about, f"a list of {what}", **details))


def switch(about: str, **details: Any) -> Meta:
    """The annotation of a bool."""
    return _meta(Key(about, "true or false", **details))


def whole(about: str, least: int = 0, most: int = _LARGEST, **details: Any) -> Meta:
    """The annotation of an int."""
    return _meta(Key(about, f"a whole number from {least} to {most}", **details), ge=least, le=most)


def count(about: str, **details: Any) -> Meta:
    """The annotation of a `Count`, or of a `Count` or None."""
    return _meta(Key(about, f"a whole number from 1 to {_LARGEST}", **details))


def choice(about: str, *values: int | str, **details: Any) -> Meta:
    """The annotation of a Literal with these values."""
    return _meta(Key(about, " or ".join(map(toml_value, values)), **details))


def time(about: str, least_s: float = 0.0, zero: str | None = None, **details: Any) -> Meta:
    """The annotation of a float, in seconds. `zero` says what 0 means, if it isn't a time."""
    expected = f'a time of {least_s:g} s to 10 years, as 30, "30s" or "5m"'
    if zero is not None:
        expected += f", or 0 for {zero}"
    return _meta(Key(about, expected, prepare=_seconds, **details), ge=least_s, le=_LONGEST_S)


def byte_size(about: str, **details: Any) -> Meta:
    """The annotation of a `Size`."""
    return _meta(Key(about, 'bytes, or a size as "2GB"', prepare=_check_size, **details))


def memory_budget(about: str, **details: Any) -> Meta:
    """The annotation of a `Budget`."""
    expected = '"auto", bytes above 0, a size as "12GB", or a share of the memory as "75%"'
    return _meta(Key(about, expected, prepare=_check_budget, **details))


def arguments(about: str, **details: Any) -> Meta:
    """The annotation of a dict. Its names and values are not checked, but must be JSON."""
    expected = "a table, as { enable_thinking = false }"
    return _meta(Key(about, expected, prepare=_check_json, **details))


def parameters(about: str, kind: type[Struct], **details: Any) -> Meta:
    """The annotation of a struct of the type `kind`; its fields are bounded numbers or None."""
    bounds = {field.name: _bounds(field.type) for field in msgspec.structs.fields(kind)}
    fields = "; ".join(f"{name} {most}" for name, most in bounds.items())
    expected = f"a table, as {{ temperature = 0.2 }}, of {fields}"

    def wrong(given: dict[str, Any]) -> Iterator[UnexpectedError]:
        for name, value in given.items():
            if name not in bounds:
                yield UnexpectedError(name, name, f"one of {', '.join(bounds)}")
                continue
            try:
                msgspec.convert({name: value}, kind)
            except msgspec.ValidationError:
                yield UnexpectedError(value, name, f"a number, {bounds[name]}")

    def check(value: Any) -> Any:
        if isinstance(value, dict) and (errors := list(wrong(value))):
            raise ExceptionGroup("parameters", errors)
        return value

    return _meta(Key(about, expected, prepare=check, **details))


def _bounds(annotation: Any) -> str:
    """The bounds of an optional number, as "0 to 2"."""
    bounds = get_args(annotation)[0].__metadata__[0]
    return f"{bounds.ge} to {bounds.le}"


def variables(about: str, **details: Any) -> Meta:
    """The annotation of a dict of texts: environment variables."""
    expected = 'a table of texts, as { LANG = "C" }'
    return _meta(Key(about, expected, prepare=_check_texts, **details))


def rank_places(about: str, most: int, **details: Any) -> Meta:
    """The annotation of a tuple of `RankPlace`, with at most `most` elements."""
    expected = (
        'a list of ranks such as [{ host = "local" }, { host = "studio2", interfaces = '
        '["10.0.0.2"] }]'
    )
    return _meta(Key(about, expected, **details), max_length=most)


def _meta(key: Key, **bounds: Any) -> Meta:
    return Meta(
        description=f"{key.about} {key.expectation}",
        examples=None if key.example is None else [key.example],
        extra={"key": key},
        **bounds,
    )


def key_of(annotation: Any) -> Key:
    """The `Key` in the last annotation of a setting's type."""
    key: Key = annotation.__metadata__[-1].extra["key"]
    return key


def read_value(annotation: Any, value: object) -> Any:
    """Make the value of a setting from the value in TOML, in a flag or in a variable.

    Raises:
        UnexpectedError: the key doesn't accept `value`.
        ExceptionGroup: of UnexpectedError, for each element that the key doesn't accept.
    """
    prepare = key_of(annotation).prepare
    try:
        return msgspec.convert(value if prepare is None else prepare(value), annotation)
    except (UnexpectedError, ExceptionGroup):
        raise
    except ValueError as error:
        if isinstance(value, list) and (element := _AT_ELEMENT.search(str(error))):
            raise UnexpectedError(value[int(element[1])], int(element[1])) from None
        raise UnexpectedError(value) from None


def written_value(value: Any) -> str:
    """The value of a setting, written in TOML. `read_value` makes the same value from it."""
    if not isinstance(value, float):
        return toml_value(msgspec.to_builtins(value))
    if (text := format_time(value)) is not None:
        return toml_text(text)
    return repr(value) if value else "0"


def _seconds(value: object) -> object:
    return parse_time(value) if isinstance(value, str) else value


def _check_size(value: Any) -> Any:
    parse_size(value)
    return value


def _check_budget(value: Any) -> Any:
    # With the largest total, even the smallest share that can be written is above 0 bytes.
    if value != "auto" and not parse_size(value, LARGEST_BYTES):
        raise ValueError("nothing")
    return value


def _check_texts(value: Any) -> Any:
    for name, text in value.items() if isinstance(value, dict) else ():
        if not isinstance(text, str):
            raise UnexpectedError(text, name)
    return value


def _check_json(value: Any) -> Any:
    if not _is_json(value):
        raise ValueError("JSON can't say that")
    return value


def _is_json(value: object) -> bool:
    """Whether JSON can express this value: not dates, times, infinities and very large integers."""
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


def toml_value(value: object) -> str:
    """A text, number, truth value, list or table, written in one line of TOML."""
    match value:
        case dict() if value:
            pairs = (f"{toml_key(name)} = {toml_value(inner)}" for name, inner in value.items())
            return f"{{ {', '.join(pairs)} }}"
        case dict():
            return "{}"
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case str():
            return toml_text(value)
        case _:
            return json.dumps(value)


def toml_text(text: str) -> str:
    """A string, written in TOML. TOML has all escapes of JSON, and needs one for DEL, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    """The name of a key, written in TOML: in quotes if the name needs them."""
    return name if _BARE.fullmatch(name) else toml_text(name)


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of the file's tables. Documents describe a table by the docstring of its class."""
