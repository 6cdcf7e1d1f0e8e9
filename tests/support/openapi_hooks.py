"""Requests made at random of /openapi.json, good ones and bad ones, to a running gateway."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.gateway import Gateway

# What the clients of a slow machine wait for.
TIMEOUT_S = 120.0
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
# What would make a model's speed the limit of the test, and what an answer may have of it.
MOST = {"max_tokens": 3, "max_completion_tokens": 3, "min_tokens": 2, "n": 2, "best_of": 2}
MOST |= {"max_output_tokens": 3}
LEFT_OUT = (
    "POST /admin/v1/keys",
    "POST /admin/v1/pulls",
    "POST /admin/v1/upgrade",
    "DELETE /admin/v1/library/{name}",
)
LIMITED = ("/v1/chat/completions", "/v1/completions", "/v1/messages")
OLLAMA = ("/api/chat", "/api/generate")


@pytest.fixture(scope="module")
def operations(gateway: Gateway) -> list[Any]:
    """But those that would shut the gateway to who has no key, remove models, or fetch them."""
    gateway.load()
    schema = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")
    return [
        each.ok()
        for each in schema.get_all_operations()
        if each.ok().label != "POST /admin/v1/keys"
    ]


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


def _bound(case: Any, *, known: bool) -> None:
    """With `known` names it asks for the model that there is."""
    if "model_id" in (case.path_parameters or {}) and known:
        case.path_parameters["model_id"] = "demo"
    if case.path.endswith(("/events", "/live", "/logs")):
        # Else it goes on for ever.
        case.query = {**(case.query or {}), "follow": "0"}
    body = case.body
    if not isinstance(body, dict):
        return
    if known and "model" in body:
        body["model"] = "demo"
    # What unloads the model costs a load, which others test.
    body.pop("keep_alive", None)
    for name, most in MOST.items():
        value = body.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > most:
            body[name] = most
    if case.path in LIMITED:
        body.setdefault("max_tokens", 2)
    if case.path == "/v1/responses":
        body.setdefault("max_output_tokens", 2)
    if case.path in OLLAMA and isinstance(body.setdefault("options", {}), dict | None):
        body["options"] = {**(body["options"] or {}), "num_predict": 2}


def _fuzz(
    operations: list[Any], session: requests.Session, examples: int, seconds: float
) -> Counter[int]:
    """So many good and bad requests to each operation, as far as time allows; one at least."""
    statuses: Counter[int] = Counter()
    share_s = seconds / len(operations) / 2
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            if mode is GenerationMode.NEGATIVE and not _takes_anything(operation):
                continue
            _fuzz_one(operation, mode, session, examples, share_s, statuses)
    return statuses


def _takes_anything(operation: Any) -> bool:
    return bool(operation.body or operation.query)


def _fuzz_one(
    operation: Any,
    mode: GenerationMode,
    session: requests.Session,
    examples: int,
    seconds: float,
    statuses: Counter[int],
) -> None:
    ends_at = time.monotonic() + seconds
    asked = 0

    @settings(
        max_examples=examples,
        database=None,
        derandomize=examples < 100,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), known=st.integers(0, 4))
    def ask(case: Any, known: int) -> None:
        nonlocal asked
        if asked and time.monotonic() > ends_at:
            return
        asked += 1
        _bound(case, known=known > 0)
        # Its own retries would hide what it is told.
        response = case.call(session=session, timeout=TIMEOUT_S)
        statuses[response.status_code] += 1
        assert response.status_code != 500, (case.as_curl_command(), response.text)
        case.validate_response(response, checks=CHECKS)

    ask()


def test_does_as_it_says(
    operations: list[Any], session: requests.Session, gateway: Gateway
) -> None:
    statuses = _fuzz(operations, session, examples=3, seconds=30.0)
    assert statuses[200]
    assert statuses[400]
    assert "internal_error" not in gateway.log
    assert gateway.client.get("/health").json()["faults"] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_does_as_it_says_for_long(
    operations: list[Any], session: requests.Session, gateway: Gateway
) -> None:
    statuses = _fuzz(operations, session, examples=400, seconds=3000.0)
    print(dict(statuses))
    assert sum(statuses.values()) > 10_000
    assert gateway.client.get("/health").json()["faults"] == []
    assert gateway.say("Hello", max_tokens=5)
