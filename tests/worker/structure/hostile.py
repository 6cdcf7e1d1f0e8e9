"""Constraints that nobody could wait for, or that would take the worker with them."""

from __future__ import annotations

import json
from typing import Any, Final

from protocol.requests import Constraint


def _schema(schema: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(schema))


def _nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def _doubled(depth: int, *, both: str) -> Any:
    """Each is made of two of the one before: 2^depth if it is written out."""
    parts: dict[str, Any] = {"d0": {"type": "object", "properties": {"x": {"type": "string"}}}}
    for index in range(1, depth):
        before = {"$ref": f"#/$defs/d{index - 1}"}
        parts[f"d{index}"] = (
            {"type": "object", "properties": {"left": before, "right": before}}
            if both == "properties"
            else {"anyOf": [before, {both: [before, {"properties": {f"p{index}": {}}}]}]}
        )
    return {"$defs": parts, "$ref": f"#/$defs/d{depth - 1}"}


def _rules(depth: int, name: str) -> Constraint:
    lines = [f"{name}{index}: {name}{index + 1} {name}{index + 1}" for index in range(depth)]
    return Constraint("grammar", "\n".join([f"start: {name}0", *lines, f'{name}{depth}: "a"']))


_ARRAY: Final = {"type": "array", "minItems": 1000}

HOSTILE: Final[dict[str, Constraint]] = {
    "nested 60 deep": _schema(_nested(60)),
    "nested 5000 deep": Constraint("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000),
    "itself": _schema({"$ref": "#"}),
    "in a circle": _schema(
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    ),
    "all of itself": _schema(
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {}]}}, "$ref": "#/$defs/a"}
    ),
    "2^40 properties": _schema(_doubled(40, both="properties")),
    "2^14 unions": _schema(_doubled(14, both="allOf")),
    "100,000 choices": Constraint("choice", json.dumps([f"v{index}" for index in range(100_000)])),
    "10,000 values": _schema({"enum": [f"v{index}" for index in range(10_000)]}),
    "5,000 properties": _schema(
        {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(5000)}}
    ),
    "2,000 objects": _schema(
        {
            "anyOf": [
                {"type": "object", "properties": {f"k{index}": {}, "z": {}}, "required": ["z"]}
                for index in range(2000)
            ]
        }
    ),
    "a billion characters": _schema({"type": "string", "minLength": 10, "maxLength": 10**9}),
    "a billion items": _schema({**_ARRAY, "items": {**_ARRAY, "items": {**_ARRAY}}}),
    "multiples of a prime": _schema({"type": "integer", "multipleOf": 99_999_989}),
    "multiples of four primes": _schema(
        {"allOf": [{"type": "integer", "multipleOf": index} for index in (9973, 9967, 9949, 9941)]}
    ),
    "repeated repetitions": Constraint("regex", "((a{1,100}){1,100}){1,100}"),
    "2^30 states": Constraint("regex", "(a|b)*a(a|b){30}"),
    "100,000 parentheses": Constraint("regex", "(" * 100_000 + "a" + ")" * 100_000),
    "2^40 by terminals": _rules(40, "T"),
    "2^40 by rules": _rules(40, "t"),
    "20,000 brackets": Constraint("grammar", "start: " + "[" * 20_000 + '"a"' + "]" * 20_000),
    "a million of a terminal": Constraint("grammar", "start: T\nT: /a/~1000000"),
    "what is ambiguous everywhere": Constraint("grammar", 'start: start start start | "a" | ""'),
}
