"""The record of each HTTP request: its id, its line in the log, its span, and its metrics."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access.caller import NeededKey, counts, needed
from gateway.http.wire.errors import (
    CLIENT_LEFT,
    PASSED_ERROR,
    error_response,
    error_sentence,
    outcome_of,
    routes_at,
)
from gateway.http.wire.finished import FinishedRequest, FinishedRequests, phases, tokens_per_s
from gateway.http.wire.openapi import described
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
    answered, which may tell no usage.
    """

    id: str
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
        waits = (each.queue_s for each in self.timings if each.queue_s is not None)
        return max(waits, default=None)

    @property
    def first_token_s(self) -> float | None:
        """The shortest time until the first token of an answer, in seconds."""
        waits = (each.first_token_s for each in self.timings if each.first_token_s is not None)
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


# The route of all unknown paths: clients can make up any number of them.
NO_ROUTE: Final = "other"


class RoutePaths:
    """Finds the route of a request: by its endpoint, or by its path if the request was refused
    before it reached an endpoint.
    """

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes = routes
        found = described(routes)
        self._paths = {each.endpoint: path for path, each in found if isinstance(each, Route)}

    def of(self, scope: Scope) -> str:
        """The route's declared path. Call this when the request has ended."""
        endpoint = scope["endpoint"] if "endpoint" in scope else self._endpoint(scope)
        # A mounted application may not be hashable, and is no endpoint.
        known = isinstance(endpoint, Hashable) and endpoint in self._paths
        return self._paths[endpoint] if known else NO_ROUTE  # type: ignore[index]

    def _endpoint(self, scope: Scope) -> object:
        """The endpoint that the request would have reached. If no route at its path takes its
        method: the endpoint of the first route at the path. None: no route has the path.
        """
        found = list(routes_at(self._routes, scope))
        found.sort(key=lambda each: each[1] is not Match.FULL)
        return found[0][0].endpoint if found else None


_ADDRESSES: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
# The longest time for sending the last spans when the gateway ends.
_FLUSH_S: Final = 3.0
_NS: Final = 1_000_000_000


class Life(NamedTuple):
    """A request that has ended, for its spans. `ended_ns` is a Unix time in nanoseconds, `ended_at`
    the same moment on the clock of `timing`, in seconds.
    """

    name: str
    headers: Mapping[str, str]
    attributes: Mapping[str, str | int | None]
    failed: bool
    ended_ns: int
    ended_at: float
    seconds: float
    timing: Timing | None


class Spans:
    """Sends spans for each request. A call of `record` takes about ten microseconds; a thread of
    OpenTelemetry does the sending.
    """

    def __init__(self, record: Callable[[Life], None], shut_down: Callable[[], None]) -> None:
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


def _phases(life: Life) -> Iterator[tuple[str, int, int]]:
    """The name, begin and end (Unix times in nanoseconds) of each phase of the answer."""
    timing = life.timing
    if timing is None or timing.queue_s is None:
        return
    arrived_ns = life.ended_ns - int((life.ended_at - timing.arrived_at) * _NS)
    sent_ns = arrived_ns + int(timing.queue_s * _NS)
    yield "queue", arrived_ns, sent_ns
    if timing.first_token_s is not None:
        first_ns = arrived_ns + int(timing.first_token_s * _NS)
        yield "prefill", sent_ns, first_ns
        yield "decode", first_ns, life.ended_ns


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

    def record(life: Life) -> None:
        whole = tracer.start_span(
            life.name,
            # If the client has sent a trace, the spans belong to it.
            propagator.extract(life.headers),
            SpanKind.SERVER,
            {name: value for name, value in life.attributes.items() if value is not None},
            start_time=life.ended_ns - int(life.seconds * _NS),
        )
        if life.failed:
            whole.set_status(Status(StatusCode.ERROR))
        within = set_span_in_context(whole)
        for name, begin_ns, end_ns in _phases(life):
            tracer.start_span(name, within, start_time=begin_ns).end(end_ns)
        whole.end(life.ended_ns)

    return Spans(record, provider.shutdown)


OK: Final = "ok"
_LONGEST_ERROR: Final = 500


class AccessLog:
    """Gives every response an x-request-id, and the log a line for each request."""

    def __init__(
        self,
        app: ASGIApp,
        meter: HttpMeter,
        finished: FinishedRequests,
        routes: RoutePaths,
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
            self._faults.note(f"{scope['method']} {self._routes.of(scope)}", error, time.time())
            logger.exception("%s", _name(scope), extra=about(request=record.id))
            if record.status is None:
                defect = Refusal("internal_error", "The gateway failed on this request.")
                await error_response(defect)(scope, receive, send_with_id)
        finally:
            self._end(scope, record, began)

    def _end(self, scope: Scope, record: Record, began: float) -> None:
        seconds = time.monotonic() - began
        outcome = outcome_of(scope) or (CLIENT_LEFT if record.status is None else OK)
        route = self._routes.of(scope)
        self._meter.end(Ended(route, record.model or "", outcome), seconds)
        _log(scope, record, outcome, seconds)
        if route != NO_ROUTE and _asks_model(scope, outcome):
            self._finished.add(_finished(scope, record, outcome, began, seconds))
        if self._spans is not None and record.model is not None:
            self._spans.record(_life(scope, record, route, outcome, seconds))


def _asks_model(scope: Scope, outcome: str) -> bool:
    """Whether the request was to make a model work. Callers without a key count for nothing, as
    they could drive out the requests of all others.
    """
    method, path = scope["method"], scope["path"]
    asks = needed(method, path) is NeededKey.KEY and counts(method, path)
    return asks and outcome != "invalid_api_key"


def _finished(
    scope: Scope, record: Record, outcome: str, began: float, seconds: float
) -> FinishedRequest:
    usage = record.usage
    return FinishedRequest(
        id=record.id,
        path=scope["path"],
        model=record.model,
        key=record.key,
        ended_at=time.time(),
        seconds=round(seconds, 3),
        status=record.status,
        outcome=outcome,
        error=_error(scope),
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        completion_tokens=None if usage is None else usage.completion_tokens,
        queue_s=_rounded(record.queue_s),
        first_token_s=_rounded(record.first_token_s),
        tokens_per_s=tokens_per_s(usage, record.timings),
        phases=phases(record.timings, began, began + seconds, passed=record.passed),
    )


def _life(scope: Scope, record: Record, route: str, outcome: str, seconds: float) -> Life:
    usage = record.usage
    return Life(
        name=f"{scope['method']} {route}",
        headers=dict(Headers(scope=scope)),
        attributes={
            "http.request.method": scope["method"],
            "http.route": route,
            "http.response.status_code": record.status,
            "gen_ai.request.model": record.model,
            "gen_ai.usage.input_tokens": None if usage is None else usage.prompt_tokens,
            "gen_ai.usage.output_tokens": None if usage is None else usage.completion_tokens,
            "bulkhead.request_id": record.id,
            "bulkhead.outcome": outcome,
            "bulkhead.key": record.key,
        },
        failed=outcome not in (OK, CLIENT_LEFT),
        ended_ns=time.time_ns(),
        ended_at=asyncio.get_running_loop().time(),
        seconds=seconds,
        timing=record.timings[0] if record.timings else None,
    )


def _log(scope: Scope, record: Record, outcome: str, seconds: float) -> None:
    """Log the request. A successful GET or HEAD is logged at DEBUG, since probes and the page send
    one each second.
    """
    only_reads = scope["method"] in ("GET", "HEAD") and record.status in (200, 304)
    logger.log(
        logging.DEBUG if only_reads else logging.INFO,
        "%s: %s",
        _name(scope),
        _ending(scope, record, seconds),
        extra=about(
            request=record.id,
            method=scope["method"],
            path=scope["path"],
            status=record.status,
            outcome=outcome,
            error=_error(scope),
            key=record.key,
            model=record.model,
            prompt_tokens=record.usage and record.usage.prompt_tokens,
            cached_tokens=record.usage and record.usage.cached_tokens,
            completion_tokens=record.usage and record.usage.completion_tokens,
            queue_s=_rounded(record.queue_s),
            first_token_s=_rounded(record.first_token_s),
            seconds=round(seconds, 3),
        ),
    )


def _ending(scope: Scope, record: Record, seconds: float) -> str:
    """How a request ended, for people."""
    usage = record.usage
    parts = [str(record.status or "the client left")]
    parts += ["an error of its server"] if outcome_of(scope) == PASSED_ERROR else []
    parts += [] if record.model is None else [record.model]
    parts += [] if record.key is None else [f"key {record.key}"]
    if usage is not None:
        parts.append(f"{usage.prompt_tokens} + {usage.completion_tokens} tokens")
    ending = ", ".join([*parts, f"{seconds:.3f} s"])
    return ending if (error := _error(scope)) is None else f"{ending}: {error}"


def _error(scope: Scope) -> str | None:
    error = error_sentence(scope)
    return None if error is None else error[:_LONGEST_ERROR]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _name(scope: Scope) -> str:
    return f"{scope['method']} {scope['path']}"
