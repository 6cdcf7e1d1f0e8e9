"""What a body says an answer must match."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.http.generation.generation_body import constraint_of
from gateway.http.openai.completions import CompletionBody
from gateway.http.openai.responses_bodies import ResponseBody
from gateway.system.refusal import Refusal
from protocol.requests import Constraint

SCHEMA = {"type": "object", "properties": {"größe": {"type": "integer"}}}
TEXT = json.dumps(SCHEMA, ensure_ascii=False)


def _body(**fields: Any) -> CompletionBody:
    sent = json.dumps({"model": "m", "prompt": "?", **fields}, ensure_ascii=False)
    return msgspec.json.decode(sent.encode(), type=CompletionBody)


def _format(**more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", **more}}


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        ({"response_format": _format(schema=SCHEMA, strict=True)}, "json_schema", TEXT),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", TEXT),
        (
            {"response_format": {"type": "json_object", "schema": {}}},
            "json_schema",
            '{"type":"object"}',
        ),
        (
            {"response_format": {"type": "json_object", "schema": {"minProperties": 1}}},
            "json_schema",
            '{"minProperties":1,"type":"object"}',
        ),
        ({"guided_json": SCHEMA}, "json_schema", TEXT),
        ({"guided_json": TEXT}, "json_schema", TEXT),
        ({"guided_regex": "[a-z]+"}, "regex", "[a-z]+"),
        ({"guided_choice": ["a", "b"]}, "choice", '["a","b"]'),
        ({"guided_grammar": 'start: "a"'}, "grammar", 'start: "a"'),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", TEXT),
        ({"structured_outputs": {"json_object": True}}, "json_object", ""),
        ({"structured_outputs": {"regex": "a", "json": None}}, "regex", "a"),
    ],
)
def test_all_names_for_constraint(fields: dict[str, Any], kind: str, source: str) -> None:
    body = _body(**fields)
    constraint = constraint_of(body)
    assert constraint is not None
    assert (constraint.kind, constraint.source.replace(" ", "")) == (kind, source.replace(" ", ""))
    assert body.constraint_param == next(iter(fields))


@pytest.mark.parametrize(
    "fields", [{}, {"response_format": {"type": "text"}}, {"guided_json": None}]
)
def test_any_text_is_allowed_without_constraint(fields: dict[str, Any]) -> None:
    assert constraint_of(_body(**fields)) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"response_format": _format()}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": _format(schema=[1])}, "response_format.json_schema.schema"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"structured_outputs": {"json": True}}, "structured_outputs.json"),
        ({"guided_regex": "a" * 300_000}, "guided_regex"),
    ],
)
def test_invalid_constraint_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refusal) as caught:
        constraint_of(_body(**fields))
    assert (caught.value.code, caught.value.param) == ("invalid_request_error", param)


def test_text_format_is_no_constraint() -> None:
    body = _body(response_format={"type": "text"}, guided_regex="a")
    assert constraint_of(body) == Constraint("regex", "a")
    assert body.constraint_param == "guided_regex"


def test_responses_take_a_schema_beside_json_object() -> None:
    format_ = {"type": "json_object", "schema": SCHEMA}
    sent = json.dumps({"model": "m", "text": {"format": format_}})
    asked = constraint_of(msgspec.json.decode(sent, type=ResponseBody).generation())
    assert asked is not None
    assert (asked.kind, json.loads(asked.source)) == ("json_schema", SCHEMA)
