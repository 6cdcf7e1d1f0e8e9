"""Texts of arguments as values of JSON, by the tool's schema."""

from __future__ import annotations

from typing import Any

import pytest

from worker.calls.values import Schemas, as_json

REFERRED: dict[str, Any] = {
    "$defs": {
        "Mode": {"enum": ["fast", "slow"]},
        "Count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "Loop": {"$ref": "#/$defs/Loop"},
        "a/b~c": {"type": "boolean"},
    }
}


def _value(schema: Any, text: str) -> Any:
    parameters = {"type": "object", "properties": {"x": schema}, **REFERRED}
    definition = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    return Schemas([definition]).value("f", "x", text)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "123", "123"),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, "  true\n", "  true\n"),
        ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
        ({"type": ["string", "null"]}, "123", "123"),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "0.5", "0.5"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "12", 12),
        ({"allOf": [{"type": "integer"}]}, "12", 12),
        ({"type": None, "anyOf": None, "enum": None}, "1", "1"),
        ({"type": 5, "oneOf": 5, "enum": 5}, "1", "1"),
        ({"type": ["integer", {"x": 1}]}, "1", 1),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": True}, "True", True),
        ({"$ref": "#/$defs/Mode"}, "fast", "fast"),
        ({"$ref": "#/$defs/Count"}, "3", 3),
        ({"$ref": "#/$defs/Count"}, "null", None),
        ({"$ref": "#/$defs/a~1b~0c"}, "false", False),
        ({"$ref": "#/$defs/Loop"}, "12", "12"),
        ({"$ref": "elsewhere"}, "x", "x"),
        ({"type": "integer"}, " 12\n", 12),
        ({"type": "integer"}, "12.0", 12),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "7", 7),
        ({"type": "int"}, "7", 7),
        ({"type": "boolean"}, "TRUE", True),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "object"}, "{'a': True}", {"a": True}),
        ({"type": "array"}, "[1,\n2]", [1, 2]),
        ({"type": "array"}, '["line\nbreak"]', ["line\nbreak"]),
        (None, '{"a": 1}', {"a": 1}),
        (None, "[1]", [1]),
        (None, "12", "12"),
        ({}, "true", "true"),
    ],
)
def test_the_schema_says_what_a_text_is(schema: Any, text: str, value: Any) -> None:
    found = _value(schema, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("integer", "2026-01-15"),
        ("integer", "1.5"),
        ("integer", "1e999"),
        ("number", "NaN"),
        ("number", "many"),
        ("boolean", "yes"),
        ("array", '{"a": 1}'),
        ("object", "[1]"),
        ("object", "{'a': {1, 2}}"),
        ("object", "{" * 5000),
        ("array", "[" * 200_000),
        ("null", "None"),
    ],
)
def test_values_of_another_type_stay_text(type_: str, text: str) -> None:
    assert _value({"type": type_}, text) == text


@pytest.mark.parametrize(
    "definitions",
    [None, [], [1], [{}], [{"function": {}}], [{"function": {"name": "f", "parameters": None}}]],
)
def test_tools_without_a_schema(definitions: Any) -> None:
    assert Schemas(definitions).value("f", "x", "12") == "12"


def test_which_tools_are_known() -> None:
    schemas = Schemas([{"function": {"name": "f"}}])
    assert (schemas.has_tool("f"), schemas.has_tool("g")) == (True, False)


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("x", "x"), ('{"a": 1}', {"a": 1})])
def test_a_value_without_a_schema(text: str, value: Any) -> None:
    assert as_json(text) == value
