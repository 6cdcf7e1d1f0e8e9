"""Requests as a collector of OpenTelemetry gets them."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from protocol.extras import command_to_add
from tests.support.gateway import Gateway, eventually

pytestmark = pytest.mark.slow

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Collector(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Span] = []
        self.services: set[str] = set()

    @property
    def environment(self) -> dict[str, str]:
        address = f"http://127.0.0.1:{self.server_port}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "100"}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = resource.resource.attributes
            self.server.services |= {
                attribute.value.string_value
                for attribute in attributes
                if attribute.key == "service.name"
            }
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_request_is_a_span_with_its_phases(
    collector: Collector, start_gateway: Callable[..., Gateway]
) -> None:
    running = start_gateway(environment=collector.environment)
    traced = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "traced"}
    running.chat("Hello", max_tokens=4, headers=traced).raise_for_status()
    running.chat("word " * 20_000)
    running.client.get("/livez")
    # Its phases come with the first, and that it was queued with the second.
    eventually(lambda: len(collector.spans) >= 6)
    # The rest is sent at the end.
    assert running.stop() == 0
    assert collector.services == {"bulkhead"}
    whole, failed = (span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER)
    if failed.trace_id.hex() == TRACE:
        whole, failed = failed, whole
    assert (whole.name, whole.trace_id.hex()) == ("POST /v1/chat/completions", TRACE)
    assert whole.parent_span_id.hex() == PARENT
    told = {attribute.key: attribute.value for attribute in whole.attributes}
    assert told["bulkhead.request_id"].string_value == "traced"
    assert told["gen_ai.request.model"].string_value == "demo"
    assert told["gen_ai.usage.output_tokens"].int_value == 4
    assert (whole.status.code, failed.status.code) == (0, 2)
    phases = [span for span in collector.spans if span.parent_span_id == whole.span_id]
    assert [phase.name for phase in phases] == ["queue", "prefill", "decode"]
    times = [whole.start_time_unix_nano]
    for phase in phases:
        times += [phase.start_time_unix_nano, phase.end_time_unix_nano]
    # The loop's clock has steps of a millisecond.
    assert all(b - a > -2_000_000 for a, b in pairwise(times))
    assert phases[-1].end_time_unix_nano == whole.end_time_unix_nano


def test_nothing_of_it_is_imported_where_nobody_asks() -> None:
    code = (
        "import sys; import gateway.server.process; "
        "from gateway.http.wire.access_log import spans; "
        "assert spans({}) is None; assert spans({'OTEL_SDK_DISABLED': 'true', "
        "'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://x'}) is None; "
        "assert not [each for each in sys.modules if each.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_missing_extra_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from gateway.http.wire.access_log import spans

    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert spans({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}) is None
    assert command_to_add("otel") in caplog.text
