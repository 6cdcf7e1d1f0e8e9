"""The document of all routes: valid, whole, and made of the types that decode."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openapi_spec_validator import validate

from gateway.http.app import ROUTES
from gateway.http.wire.openapi import Described, make_document


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(make_document(ROUTES))
    return found


def test_document_is_valid(document: dict[str, Any]) -> None:
    validate(document)


def test_document_has_every_route() -> None:
    """Each is declared by `Routes`, not by Starlette's `Route`."""
    assert [route.path for route in ROUTES if not isinstance(route, Described)] == []


def test_document_names_each_operation_once(document: dict[str, Any]) -> None:
    names = [item["operationId"] for path in document["paths"].values() for item in path.values()]
    assert len(names) == len(set(names)) == len(ROUTES)


def _schema(document: dict[str, Any], path: str) -> dict[str, Any]:
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].rpartition("/")[2]
    found: dict[str, Any] = document["components"]["schemas"][name]
    return found


def test_bodies_are_those_that_are_decoded(document: dict[str, Any]) -> None:
    chat = _schema(document, "/v1/chat/completions")
    assert chat["required"] == ["model", "messages"]
    assert chat["properties"]["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 128}
    # What is refused says which values are taken.
    assert chat["properties"]["best_of"]["enum"] == [None, 1]
    assert "anyOf" in _schema(document, "/v1/completions")["properties"]["prompt"]


def test_a_number_of_a_query_has_its_bounds(document: dict[str, Any]) -> None:
    parameters = document["paths"]["/admin/v1/events"]["get"]["parameters"]
    schemas = {parameter["name"]: parameter["schema"] for parameter in parameters}
    assert schemas["recent"] == {"type": "integer", "minimum": 0, "maximum": 999_999_999}


def test_errors_have_the_envelope_of_their_path(document: dict[str, Any]) -> None:
    for path, name in (
        ("/v1/chat/completions", "OpenAIErrorEnvelope"),
        ("/v1/messages", "AnthropicErrorEnvelope"),
        ("/api/chat", "OllamaErrorEnvelope"),
    ):
        responses = document["paths"][path]["post"]["responses"]
        assert {"200", "400", "404", "429", "500", "503", "504", "507"} <= set(responses)
        schema = responses["404"]["content"]["application/json"]["schema"]
        assert schema["$ref"].endswith(f"/{name}")


@pytest.mark.parametrize(
    ("path", "field", "kinds"),
    [
        ("/v1/chat/completions", "best_of", [type(None), int]),
        ("/v1/embeddings", "normalize", [type(None), bool]),
    ],
)
def test_document_distinguishes_one_from_true(
    document: dict[str, Any], path: str, field: str, kinds: list[type]
) -> None:
    content = document["paths"][path]["post"]["requestBody"]["content"]
    name = content["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
    schema = document["components"]["schemas"][name]["properties"][field]
    assert [type(value) for value in schema["enum"]] == kinds
