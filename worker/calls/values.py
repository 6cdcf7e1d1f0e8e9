"""Converts the text that a model has written for an argument to a JSON value, by the tool's schema.

A text that isn't of the schema's type stays a text: the tool can tell the model what it expects.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

# Names that schemas use beside those of JSON Schema.
_ALIASES: Final = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
}
_CHOICES: Final = ("anyOf", "oneOf", "allOf")
_BOOLEANS: Final = {"true": True, "false": False}
_MOST_REFERENCES: Final = 16


class Schemas:
    """The schemas of the arguments of all tools in a request."""

    def __init__(self, definitions: Iterable[Any] | None) -> None:
        """`definitions` are OpenAI's definitions of tools."""
        self._parameters: dict[str, Any] = {}
        for definition in definitions or ():
            function = definition.get("function") if isinstance(definition, dict) else None
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                self._parameters[function["name"]] = function.get("parameters")

    def has_tool(self, name: str) -> bool:
        return name in self._parameters

    def has_argument(self, tool: str, key: str) -> bool:
        """Whether the tool may have this argument. Without a schema it may have any."""
        properties = self._properties(tool)
        return key in properties or not properties

    def value(self, tool: str, key: str, text: str) -> Any:
        """The value of an argument that was written as `text`."""
        parameters = self._parameters.get(tool)
        return _typed(text, _types(self._properties(tool).get(key), parameters))

    def typed_value(self, tool: str, key: str, text: str) -> Any:
        """The same for an argument that was written as no text, but as JSON."""
        value = self.value(tool, key, text)
        types = _types(self._properties(tool).get(key), self._parameters.get(tool))
        return as_json(text) if value == text and not types else value

    def _properties(self, tool: str) -> Mapping[str, Any]:
        parameters = self._parameters.get(tool)
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        return properties if isinstance(properties, dict) else {}


def _typed(text: str, types: set[str]) -> Any:
    """The value of `text` as the first of `types` that reads it. Without types only JSON's objects
    and lists are more than text.
    """
    for type_, read in _READERS.items():
        if type_ in types or (not types and type_ in ("object", "array")):
            try:
                return read(text.strip())
            except (TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return text


def _null(text: str) -> None:
    if text != "null":
        raise ValueError(text)


def _boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise ValueError(text)
    return value


def _integer(text: str) -> int:
    value = _number(text)
    if value != int(value):
        raise ValueError(text)
    return int(value)


def _number(text: str) -> int | float:
    value = json.loads(text, parse_constant=_null)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(text)
    json.dumps(value, allow_nan=False)
    return value


def _container(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = json.loads(text, strict=False)
        except ValueError:
            value = ast.literal_eval(text)
        if not isinstance(value, kind):
            raise ValueError(text)
        return json.loads(json.dumps(value, allow_nan=False))

    return read


# The order counts: "null" is a text, too, and so is each number.
_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "null": _null,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "object": _container(dict),
    "array": _container(list),
}


def _types(schema: Any, root: Any, references: int = _MOST_REFERENCES) -> set[str]:
    """The types that a schema allows, by JSON Schema's names; none if the schema doesn't tell."""
    if not isinstance(schema, dict) or not references:
        return set()
    named = schema.get("type")
    names = [named] if isinstance(named, str) else _list(named)
    types = {_ALIASES.get(name, name) for name in names if isinstance(name, str)}
    if not types:
        values = _list(schema.get("enum")) or ([schema["const"]] if "const" in schema else [])
        types = {_TYPES[type(value)] for value in values if type(value) in _TYPES}
    for choice in _CHOICES:
        for part in _list(schema.get(choice)):
            types |= _types(part, root, references - 1)
    if isinstance(reference := schema.get("$ref"), str):
        types |= _types(_referenced(root, reference), root, references - 1)
    return types


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_TYPES: Final = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    dict: "object",
    list: "array",
}


def _referenced(root: Any, reference: str) -> Any:
    """The part of a schema that a reference like "#/$defs/Mode" names; None if there is none."""
    for name in reference.removeprefix("#").split("/")[1:]:
        if not isinstance(root, dict):
            return None
        root = root.get(name.replace("~1", "/").replace("~0", "~"))
    return root


def as_json(text: str) -> Any:
    """The JSON value of a text; the text itself if it is no JSON."""
    try:
        return json.loads(text, strict=False, parse_constant=_null)
    except (ValueError, RecursionError):
        return text
