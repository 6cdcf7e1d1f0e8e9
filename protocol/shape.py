"""What types of messages are made of, as a short text that changes with any part of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct
from msgspec.structs import fields

_DIGITS = 8


def digest(kinds: Any) -> str:
    """Of all that these types can hold. It is the same in every version of Python."""
    described: dict[str, str] = {}
    top = _shape(kinds, described)
    lines = [top, *(f"{name}: {text}" for name, text in sorted(described.items()))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_DIGITS]


def _shape(kind: Any, described: dict[str, str]) -> str:
    """Structs are named, and `described` once."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " | ".join(sorted(_shape(each, described) for each in arguments))
    if origin is Literal:
        return " | ".join(sorted(map(repr, arguments)))
    if origin is Annotated:
        return " ".join([_shape(arguments[0], described), *map(_bounds, arguments[1:])])
    if origin is not None:
        parts = ("..." if each is ... else _shape(each, described) for each in arguments)
        return f"{origin.__name__}[{', '.join(parts)}]"
    if isinstance(kind, type) and issubclass(kind, Struct) and kind.__name__ not in described:
        described[kind.__name__] = ""  # It may hold itself.
        described[kind.__name__] = "; ".join(_parts(kind, described))
    return "None" if kind is NoneType else str(kind.__name__)


def _parts(kind: type[Struct], described: dict[str, str]) -> Iterator[str]:
    config = kind.__struct_config__
    yield f"{config.tag_field}={config.tag} {config.array_like} {config.forbid_unknown_fields}"
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        may_lack = "" if each.required else "?"
        yield f"{each.encode_name}{may_lack}: {_shape(hints[each.name], described)}"


def _bounds(meta: Meta) -> str:
    return f"{meta.ge}..{meta.le}"
