"""Random schemas and regular expressions of what models are asked for."""

from __future__ import annotations

import random
from typing import Any

_NAMES = ("name", "age", "city", "tags", "ok", "x y", "größe", 'quo"te', "id")
_PATTERNS = ("^[a-z]{2,5}$", "[0-9]{3}-[0-9]{2}", "^(a|bc)+$", r"\d+(\.\d{2})?")
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4")
_DEPTH = 3


def random_schema(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const"]
    if depth < _DEPTH:
        kinds += ["object", "object", "array", "anyOf", "ref", "types"]
    kind = chance.choice(["object", "array", "anyOf"] if depth == 0 else kinds)
    match kind:
        case "object":
            return _object(chance, depth)
        case "array":
            return _array(chance, depth)
        case "anyOf":
            count = chance.randint(1, 3)
            return {"anyOf": [random_schema(chance, depth + 1) for _ in range(count)]}
        case "types":
            return {"type": chance.sample(["integer", "boolean", "null"], 2)}
        case "ref":
            return (
                {
                    "$defs": {"it": random_schema(chance, _DEPTH)},
                    "$ref": "#/$defs/it",
                }
                if depth == 0
                else random_schema(chance, _DEPTH)
            )
        case "string":
            return _string(chance)
        case "integer" | "number":
            return _number(chance, kind)
        case "enum":
            return {"enum": chance.sample(["a", "b c", "ö", 1, 2.5, None, True, ["x"]], 3)}
        case "const":
            return {"const": chance.choice(["fixed", 7, None, {"k": [1, "2"]}])}
    return {"type": kind}


def _object(chance: random.Random, depth: int) -> dict[str, Any]:
    names = chance.sample(_NAMES, chance.randint(0, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: random_schema(chance, depth + 1) for name in names},
        "required": [text for text in names if chance.random() < 0.7],
        "additionalProperties": chance.choice([False, False, {"type": "integer"}]),
    }
    return schema


def _array(chance: random.Random, depth: int) -> dict[str, Any]:
    least = chance.randint(0, 2)
    schema: dict[str, Any] = {
        "type": "array",
        "items": random_schema(chance, depth + 1),
        "minItems": least,
        "maxItems": least + chance.randint(0, 2),
    }
    if chance.random() < 0.2:
        schema["prefixItems"] = [random_schema(chance, depth + 1)]
        schema["maxItems"] += 1
    return schema


def _string(chance: random.Random) -> dict[str, Any]:
    match chance.randrange(4):
        case 0:
            return {"type": "string", "pattern": chance.choice(_PATTERNS)}
        case 1:
            return {"type": "string", "format": chance.choice(_FORMATS)}
        case _:
            least = chance.randint(0, 5)
            return {
                "type": "string",
                "minLength": least,
                "maxLength": least + chance.randint(0, 20),
            }


def _number(chance: random.Random, kind: str) -> dict[str, Any]:
    least = chance.randint(-1000, 1000)
    match chance.randrange(4):
        case 0:
            return {"type": kind, "minimum": least, "maximum": least + chance.randint(0, 5000)}
        case 1:
            return {"type": kind, "exclusiveMinimum": least, "exclusiveMaximum": least + 10}
        case 2:
            return {"type": "integer", "multipleOf": chance.randint(1, 12), "minimum": 0}
        case _:
            return {"type": kind}


def random_regex(chance: random.Random, depth: int = 0) -> str:
    """Of what Python and llguidance read alike."""
    kind = chance.randrange(8 if depth < _DEPTH else 4)
    match kind:
        case 0:
            return chance.choice(["a", "Z", "7", " ", "ö", "船", r"\.", r"\\", "/", '"', "-"])
        case 1:
            return chance.choice(["[a-z]", "[0-9]", "[A-Fx_]", r"[^\n\x00-\x1f]", "[äöü]"])
        case 2:
            return chance.choice(["cat", "dog ", "2026-", "x=", "🙂"])
        case 3:
            return chance.choice(["[a-z]{1,4}", "[0-9]{2}", "(yes|no)"])
        case 4 | 5:
            return "".join(random_regex(chance, depth + 1) for _ in range(chance.randint(2, 4)))
        case 6:
            count = chance.randint(2, 3)
            return "(" + "|".join(random_regex(chance, depth + 1) for _ in range(count)) + ")"
        case _:
            most = chance.randint(1, 4)
            return f"({random_regex(chance, depth + 1)}){chance.choice(['?', f'{{1,{most}}}'])}"
