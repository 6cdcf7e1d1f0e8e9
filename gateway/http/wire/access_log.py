"""The record of each HTTP request: its id, its line in the log, its span, and its metrics."""

from __future__ import annotations

import logging
import re
import secrets
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access.caller import NeededKey
from gateway.http.wire.errors import (
    CLIENT_LEFT,
    PASSED_ERROR,
    error_response,
    error_sentence,
    outcome_of,
)
from gateway.http.wire.finished import FinishedRequest, FinishedRequests, phases, tokens_per_s
from gateway.http.wire.openapi import NO_ROUTE, Access, Described, access_of
from gateway.requests.use import Timing
from gateway.system.lane import Lane
from gateway.system.log_lines import about
from gateway.system.refusal import Refusal
from gateway.system.tasks import Faults, Histogram
from protocol.answers import Usage
from protocol.extras import command_to_add

logger = logging.getLogger(__name__)

REQUEST_ID: Final = b"x-request-id"
# On its own paths Anthropic's clients look for another name.
_ANTHROPIC: Final = "/v1/messages"
_ANTHROPICS_ID: Final = "request-id"
# An id must need no escaping in JSON, log lines and headers.
_VALID_ID: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:~/+=@-]{0,127}")


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's X-Request-Id if there is exactly one and it is valid, else a new id."""
    given = [value for name, value in headers if name == REQUEST_ID]
    if len(given) == 1 and _VALID_ID.fullmatch(given[0]):
        return given[0].decode("ascii")
    return new_request_id()


def new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"


def unique(request_id: str) -> str:
    """The id with a suffix, since clients may send the same id twice."""
    return f"{request_id}.{secrets.token_hex(4)}"


class Record(Struct):
    """A request while it is served. `id` is the client's own if it sent a valid one. `key` is the
    name of the API key; None without keys. Routes that generate set the model, the usage and the
    timings. `counted`: the usage is in the key's account already. `passed`: another server has
    answered, which may tell no usage. `access` is what the route demands of the caller.
    """

    id: str
    access: Access = Access(NO_ROUTE, NeededKey.ADMIN, reads=False, counts=True)
    key: str | None = None
    model: str | None = None
    usage: Usage | None = None
    counted: bool = False
    passed: bool = False
    timings: Sequence[Timing] = ()
    status: int | None = None

    @property
    def uncounted(self) -> Usage | None:
        """The usage that is not in the key's account yet. None: no model has worked for it."""
        if self.counted:
            return None
        return self.usage or (Usage(0, 0) if self.passed else None)

    @property
    def queue_s(self) -> float | None:
        """The longest wait of an answer for a worker, in seconds."""
        waits = (timing.queue_s for timing in self.timings if timing.queue_s is not None)
        return max(waits, default=None)

    @property
    def first_token_s(self) -> float | None:
        """The shortest time until the first token of an answer, in seconds."""
        waits = (
            timing.first_token_s for timing in self.timings if timing.first_token_s is not None
        )
        return min(waits, default=None)


_RECORD: Final = "record"


def begin_record(scope: Scope) -> Record:
    record = Record(request_id(scope["headers"]))
    scope.setdefault("state", {})[_RECORD] = record
    return record


def record_of(scope: Scope) -> Record:
    record: Record = scope["state"][_RECORD]
    return record


def note_usage(scope: Scope, usage: Usage, *, counted: bool = False) -> None:
    """`counted`: the mailbox has counted the usage in the key's account already."""
    record = record_of(scope)
    record.usage = usage
    record.counted = counted


# The bounds of the histogram of whole requests.
WHOLE_S: Final = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0),
)


class Ended(NamedTuple):
    """A request that has ended. `model_id` is empty if the request named no model."""

    route: str
    model_id: str
    outcome: str


class HttpMeter:
    """Counts requests that have ended. `whole_s` has, by model, the durations in seconds of the
    requests that were answered in full.
    """

    def __init__(self) -> None:
        self.ended: Counter[Ended] = Counter()
        self.whole_s: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(WHOLE_S))

    def end(self, ended: Ended, seconds: float) -> None:
        self.ended[ended] += 1
        if ended.model_id and ended.outcome == "ok":
            self.whole_s[ended.model_id].observe(seconds)


OK: Final = "ok"
_ADDRESSES: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
# The longest time for sending the last spans when the gateway ends.
_FLUSH_S: Final = 3.0
_NS: Final = 1_000_000_000


class HttpSpan(NamedTuple):
    """A request that has ended, for its spans. `began_at` is the time of its begin on the monotonic
    clock of `timing`, in seconds.
    """

    request: FinishedRequest
    method: str
    route: str
    headers: Mapping[str, str]
    began_at: float
    timing: Timing | None

    @property
    def ended_ns(self) -> int:
        return int(self.request.ended_at * _NS)

    @property
    def began_ns(self) -> int:
        return self.ended_ns - int(self.request.seconds * _NS)

    @property
    def attributes(self) -> dict[str, str | int]:
        request = self.request
        attributes = {
            "http.request.method": self.method,
            "http.route": self.route,
            "http.response.status_code": request.status,
            "gen_ai.request.model": request.model,
            "gen_ai.usage.input_tokens": request.prompt_tokens,
            "gen_ai.usage.output_tokens": request.completion_tokens,
            "bulkhead.request_id": request.id,
            "bulkhead.outcome": request.outcome,
            "bulkhead.key": request.key,
        }
        return {name: value for name, value in attributes.items() if value is not None}


class Spans:
    """Sends spans for each request. A call of `record` takes about ten microseconds; a thread of
    OpenTelemetry does the sending.
    """

    def __init__(self, record: Callable[[HttpSpan], None], shut_down: Callable[[], None]) -> None:
        """`record` makes a span of the whole request and one of each phase. `shut_down` sends the
        spans that are left, and blocks.
        """
        self.record = record
        self._shut_down = shut_down
        self._lane = Lane("spans")

    async def close(self) -> None:
        """Send the spans that are left, within a deadline."""
        try:
            await self._lane.run(self._shut_down, _FLUSH_S, "the collector of spans")
        except OSError as error:
            logger.warning("The last spans were not sent: %s", error)


def _phases(span: HttpSpan) -> Iterator[tuple[str, int, int]]:
    """The name, begin and end (Unix times in nanoseconds) of each phase of the first answer."""
    timing = span.timing
    if timing is None or timing.queue_s is None:
        return
    arrived_ns = span.began_ns + int((timing.arrived_at - span.began_at) * _NS)
    sent_ns = arrived_ns + int(timing.queue_s * _NS)
    yield "queue", arrived_ns, sent_ns
    if timing.first_token_s is not None:
        first_ns = arrived_ns + int(timing.first_token_s * _NS)
        yield "prefill", sent_ns, first_ns
        yield "decode", first_ns, span.ended_ns


def spans(environment: Mapping[str, str]) -> Spans | None:
    """The sender of spans. None: the environment names no collector or disables OpenTelemetry, or
    the extra `otel` is not installed; only the latter is logged.
    """
    wanted = any(environment.get(name) for name in _ADDRESSES)
    if not wanted or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError as error:
        logger.warning("No spans are sent (%s): %s", error, command_to_add("otel"))
        return None
    named: dict[str, Any] = {SERVICE_NAME: environment.get("OTEL_SERVICE_NAME", "bulkhead")}
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer, propagator = provider.get_tracer("bulkhead"), TraceContextTextMapPropagator()

    def record(span: HttpSpan) -> None:
        whole = tracer.start_span(
            f"{span.method} {span.route}",
            # If the client has sent a trace, the spans belong to it.
            propagator.extract(span.headers),
            SpanKind.SERVER,
            span.attributes,
            start_time=span.began_ns,
        )
        if span.request.outcome not in (OK, CLIENT_LEFT):
            whole.set_status(Status(StatusCode.ERROR))
        within = set_span_in_context(whole)
        for name, begin_ns, end_ns in _phases(span):
            tracer.start_span(name, within, start_time=begin_ns).end(end_ns)
        whole.end(span.ended_ns)

    return Spans(record, provider.shutdown)


_LONGEST_ERROR: Final = 500


class AccessLog:
    """Gives every response an x-request-id, and the log a line for each request."""

    def __init__(
        self,
        app: ASGIApp,
        meter: HttpMeter,
        finished: FinishedRequests,
        routes: Sequence[Described],
        spans: Spans | None,
        faults: Faults,
    ) -> None:
        self._app = app
        self._meter = meter
        self._finished = finished
        self._routes = routes
        self._spans = spans
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        record = begin_record(scope)
        record.access = access_of(self._routes, scope)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                headers[REQUEST_ID.decode()] = record.id
                if scope["path"].startswith(_ANTHROPIC):
                    headers[_ANTHROPICS_ID] = record.id
                message["headers"] = headers.raw
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            # Either `on_defect` has answered the client, or the answer had begun already.
            self._faults.record(f"{scope['method']} {record.access.path}", error, time.time())
            logger.exception("%s", _name(scope), extra=about(request=record.id))
            if record.status is None:
                defect = Refusal("internal_error", "The gateway failed on this request.")
                await error_response(defect)(scope, receive, send_with_id)
        finally:
            self._end(scope, record, began)

    def _end(self, scope: Scope, record: Record, began: float) -> None:
        outcome = outcome_of(scope) or (CLIENT_LEFT if record.status is None else OK)
        route = record.access.path
        request = _finished(scope, record, outcome, began)
        self._meter.end(Ended(route, record.model or "", outcome), request.seconds)
        _log(scope, request)
        if route != NO_ROUTE and _asks_model(record, outcome):
            self._finished.add(request)
        if self._spans is not None and record.model is not None:
            timing = record.timings[0] if record.timings else None
            headers = dict(Headers(scope=scope))
            self._spans.record(HttpSpan(request, scope["method"], route, headers, began, timing))


def _asks_model(record: Record, outcome: str) -> bool:
    """Whether the request was to make a model work. Callers without a key count for nothing, as
    they could drive out the requests of all others.
    """
    access = record.access
    return access.key is NeededKey.KEY and access.counts and outcome != "invalid_api_key"


def _finished(scope: Scope, record: Record, outcome: str, began: float) -> FinishedRequest:
    usage, ended = record.usage, time.monotonic()
    error = error_sentence(scope)
    return FinishedRequest(
        id=record.id,
        path=scope["path"],
        model=record.model,
        key=record.key,
        ended_at=time.time(),
        seconds=round(ended - began, 3),
        status=record.status,
        outcome=outcome,
        error=error and error[:_LONGEST_ERROR],
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        completion_tokens=None if usage is None else usage.completion_tokens,
        queue_s=_rounded(record.queue_s),
        first_token_s=_rounded(record.first_token_s),
        tokens_per_s=tokens_per_s(usage, record.timings),
        phases=phases(record.timings, began, ended, passed=record.passed),
    )


# The fields of a finished request that its line in the log has, too.
_LOGGED: Final = (
    *("path", "status", "outcome", "error", "key", "model"),
    *("prompt_tokens", "cached_tokens", "completion_tokens"),
    *("queue_s", "first_token_s", "seconds"),
)


def _log(scope: Scope, request: FinishedRequest) -> None:
    """Log the request. A successful GET or HEAD is logged at DEBUG, since probes and the page send
    one each second.
    """
    only_reads = scope["method"] in ("GET", "HEAD") and request.status in (200, 304)
    logger.log(
        logging.DEBUG if only_reads else logging.INFO,
        "%s: %s",
        _name(scope),
        _ending(request),
        extra=about(
            request=request.id,
            method=scope["method"],
            **{name: getattr(request, name) for name in _LOGGED},
        ),
    )


def _ending(request: FinishedRequest) -> str:
    """How a request ended, for people."""
    parts = [
        str(request.status or "the client left"),
        "an error of its server" if request.outcome == PASSED_ERROR else None,
        request.model,
        request.key and f"key {request.key}",
        None
        if request.prompt_tokens is None
        else f"{request.prompt_tokens} + {request.completion_tokens} tokens",
        f"{request.seconds:.3f} s",
    ]
    ending = ", ".join(filter(None, parts))
    return ending if request.error is None else f"{ending}: {request.error}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _name(scope: Scope) -> str:
    return f"{scope['method']} {scope['path']}"
