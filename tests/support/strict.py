"""Answers as strict decoders read them: with every field that a client's specification names."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter


def decode(kind: Any, data: object, optional: Mapping[str, Collection[str]]) -> Any:
    """`data` as this type of a client's library, without any conversion.

    The libraries give what may be null a default, and so forgive that it is missing: here nothing
    may be, but what is `optional`, by the names of types.
    """
    found = _adapter(kind).validate_python(data, strict=True)
    missing = sorted(_missing(found, optional))
    assert not missing, missing
    return found


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """To build that of a client's events takes half a second."""
    return TypeAdapter(kind)


def _missing(value: Any, optional: Mapping[str, Collection[str]]) -> set[str]:
    match value:
        case BaseModel():
            name = type(value).__name__
            fields = set(type(value).model_fields) - set(optional.get(name, ()))
            inner = [getattr(value, text) for text in value.model_fields_set]
            found = {f"{name}.{field}" for field in fields - value.model_fields_set}
            return found.union(*(_missing(item, optional) for item in inner))
        case list():
            return set().union(*(_missing(item, optional) for item in value))
        case _:
            return set()
