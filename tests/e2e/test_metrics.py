"""What /metrics and the log tell of requests that were really made."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.gateway import START_S, Gateway, chat_body, eventually
from tests.support.raw_http import ask, get
from tests.support.streams import open_stream

STORY = "Tell me a story."
Sample = tuple[str, frozenset[tuple[str, str]]]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    running = Gateway(config='[models.other]\npath = "demo"\naliases = ["short"]\n')
    running.load()
    yield running
    assert running.stop() == 0, running.log


def _scrape(gateway: Gateway) -> dict[Sample, float]:
    answer = gateway.client.get("/metrics").raise_for_status()
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[Sample, float] = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, "no sample comes twice"
            found[key] = sample.value
    return found


def _value(found: dict[Sample, float], name: str, **labels: str) -> float:
    """0 for what was never counted."""
    return found.get((name, frozenset(labels.items())), 0.0)


def _line(gateway: Gateway, request_id: str) -> dict[str, object]:
    """The access line of a request."""

    def find() -> dict[str, object] | None:
        lines = (json.loads(text) for text in list(gateway._log))
        return next((line for line in lines if _is_access(line, request_id)), None)

    line: dict[str, object] = eventually(find)
    return line


def _is_access(line: dict[str, object], request_id: str) -> bool:
    return line.get("request") == request_id and "outcome" in line


def test_an_answer_is_counted_and_has_one_line(gateway: Gateway) -> None:
    before = _scrape(gateway)
    answer = gateway.chat(
        STORY, max_tokens=60, ignore_eos=True, headers={"x-request-id": "counted"}
    )
    usage = answer.raise_for_status().json()["usage"]
    assert answer.headers["x-request-id"] == "counted"
    after = _scrape(gateway)

    def grown(name: str, **labels: str) -> float:
        labels = labels or {"model_name": "demo"}
        return _value(after, name, **labels) - _value(before, name, **labels)

    route = {"route": "/v1/chat/completions", "model_name": "demo", "outcome": "ok"}
    assert grown("bulkhead_requests_total", **route) == 1
    assert grown("bulkhead_generation_tokens_total") == usage["completion_tokens"]
    assert grown("bulkhead_prompt_tokens_total") == usage["prompt_tokens"]
    assert grown("bulkhead_prefix_cache_queries_total") == usage["prompt_tokens"]
    for once in ("time_to_first_token", "request_queue_time", "e2e_request_latency"):
        assert grown(f"bulkhead_{once}_seconds_count") == 1
    # Tokens that come together with the first one have no time between them.
    gaps = grown("bulkhead_inter_token_latency_seconds_count")
    assert 0 < gaps < usage["completion_tokens"]
    line = _line(gateway, "counted")
    told = {name: line[name] for name in ("model", "outcome", "status", "completion_tokens")}
    assert told == {"model": "demo", "outcome": "ok", "status": 200, "completion_tokens": 60}
    waits = [line["queue_s"], line["first_token_s"], line["seconds"]]
    assert waits == sorted(waits)  # type: ignore[type-var]


def test_metrics_have_the_fields_of_status(gateway: Gateway) -> None:
    memory = gateway.status()["memory"]
    found = eventually(
        lambda: (
            (found := _scrape(gateway))
            and _value(found, "bulkhead_memory_stranded_bytes")
            == (gateway.status()["memory"]["stranded_bytes"] or 0)
            and found
        )
    )
    assert _value(found, "bulkhead_memory_budget_bytes") == memory["budget_bytes"]
    floor = _value(found, "bulkhead_model_floor_bytes", model_name="demo")
    assert floor == gateway.model()["floor_bytes"]
    assert _value(found, "bulkhead_model_state", model_name="demo", state="ready") == 1
    assert _value(found, "bulkhead_model_state", model_name="other", state="unloaded") == 1
    assert _value(found, "bulkhead_gateway_state", state="serving") == 1
    assert _value(found, "bulkhead_model_load_seconds_count", model_name="demo") >= 1
    assert _value(found, "bulkhead_event_loop_lag_seconds_count") > 0
    assert _value(found, "process_open_fds") > 0
    unknown = ("bulkhead_worker_footprint_bytes", frozenset({("model_name", "other")}))
    assert unknown not in found, "what isn't known is no number"


def test_clients_cannot_invent_labels(gateway: Gateway) -> None:
    for number in range(20):
        gateway.client.get(f"/nowhere/{number}")
        gateway.client.get(f"/admin/v1/nowhere/{number}")
        gateway.client.get(f"/v1/models/none-{number}")
        gateway.chat("x", f"none-{number}")
        gateway.client.request("BREW", f"/coffee/{number}")
    gateway.chat("x", "short", max_tokens=1).raise_for_status()
    ask(gateway, b"\x00nonsense\r\n\r\n")
    found = _scrape(gateway)
    ended = [dict(labels) for name, labels in found if name == "bulkhead_requests_total"]
    assert {entry["model_name"] for entry in ended} <= {"", "demo", "other"}
    assert all("none" not in entry["route"] for entry in ended)
    unknown = {"route": "other", "model_name": "", "outcome": "not_found"}
    assert _value(found, "bulkhead_requests_total", **unknown) >= 40
    model = {"route": "/v1/models/{model_id:path}", "model_name": "", "outcome": "model_not_found"}
    assert _value(found, "bulkhead_requests_total", **model) == 20
    refused = _value(found, "bulkhead_connections_refused_total", code="invalid_request_error")
    assert refused == 21, "no method of HTTP, and no HTTP"


def test_a_stream_that_is_refused_or_left_says_so(gateway: Gateway) -> None:
    def left() -> float:
        labels = {"route": "/v1/chat/completions", "outcome": "client_left"}
        return _value(_scrape(gateway), "bulkhead_requests_total", model_name="demo", **labels)

    before = left()
    body = chat_body(STORY, stream=True, max_tokens=2000, ignore_eos=True)
    named = {"x-request-id": "leaves"}
    with gateway.client.stream("POST", "/v1/chat/completions", json=body, headers=named) as answer:
        next(answer.iter_lines())
    eventually(lambda: left() == before + 1)
    assert _line(gateway, "leaves")["outcome"] == "client_left"
    gateway.chat("word " * 50_000, headers={"x-request-id": "too-long"})
    assert _line(gateway, "too-long")["outcome"] == "context_length_exceeded"
    page = ("Origin: http://evil.example", "X-Request-Id: page", "Connection: close")
    assert ask(gateway, get("/livez", *page)).status == 403
    assert _line(gateway, "page")["outcome"] == "permission_denied"


@pytest.mark.slow
def test_a_lost_worker_is_counted_by_its_cause(gateway: Gateway) -> None:
    before = _scrape(gateway)
    stream = open_stream(gateway, STORY, max_tokens=400, ignore_eos=True)
    eventually(lambda: stream.text, START_S)
    os.kill(gateway.worker_pid(), signal.SIGKILL)
    assert stream.join().done
    gateway.order("restart").raise_for_status()
    after = _scrape(gateway)
    for name, labels in (
        ("bulkhead_requests_parked_total", {}),
        ("bulkhead_requests_resumed_total", {}),
        ("bulkhead_worker_restarts_total", {"cause": "crashed"}),
        ("bulkhead_worker_restarts_total", {"cause": "operator"}),
        ("bulkhead_events_total", {"event": "park"}),
    ):
        known = {"model_name": "demo", **labels}
        assert _value(after, name, **known) - _value(before, name, **known) == 1, name
    exits = {"event": "exit", "model_name": "demo"}
    grown = _value(after, "bulkhead_events_total", **exits)
    assert grown - _value(before, "bulkhead_events_total", **exits) == 2
