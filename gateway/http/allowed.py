"""What a field of a body may be, for those who sent something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import inspect

# The parts of a path as msgspec writes it: a field, or an item.
_STEP: Final = re.compile(r"(?P<field>[^.\[\]]+)|\[[^\]]*\]")
_MOST: Final = 30


def allowed_values(kind: Any, path: str) -> str:
    """A list for a sentence; empty if there is none. `path` is of a field with few values."""
    found = [inspect.type_info(kind)]
    steps = list(_STEP.finditer(path))
    for place, step in enumerate(steps):
        name = step["field"]
        found = [each for kind in found for each in _alternatives(kind)]
        if name and place == len(steps) - 1 and (tags := list(_tags(found, name))):
            return _listed(tags)
        found = [each for kind in found for each in _within(kind, name)]
    values = (each for kind in found for each in _alternatives(kind))
    return _listed(
        [value for each in values if isinstance(each, inspect.LiteralType) for value in each.values]
    )


def _alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    match kind:
        case inspect.UnionType(types):
            for each in types:
                yield from _alternatives(each)
        case inspect.Metadata(type=inner):
            yield from _alternatives(inner)
        case _:
            yield kind


def _within(kind: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    match kind:
        case inspect.StructType(fields=fields) if name is not None:
            yield from (each.type for each in fields if each.encode_name == name)
        case inspect.ListType(item_type=item) | inspect.DictType(value_type=item) if name is None:
            yield item


def _tags(kinds: list[inspect.Type], name: str) -> Iterator[Any]:
    for each in kinds:
        if isinstance(each, inspect.StructType) and each.tag_field == name:
            yield each.tag


def _listed(values: list[Any]) -> str:
    words = [repr(each) for each in dict.fromkeys(values)][:_MOST]
    return ", ".join(words)
