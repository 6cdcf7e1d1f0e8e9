"""Requests as spans of OpenTelemetry: with the extra `otel`, and where the environment names a
collector as OpenTelemetry's specification has it. Without one nothing of it is imported.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.requests.use import Timing
from gateway.system.lane import Lane

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

logger = logging.getLogger(__name__)

_ADDRESSES: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
# For what has not been sent yet when the gateway ends.
_FLUSH_S: Final = 3.0
_NS: Final = 1_000_000_000


class Life(NamedTuple):
    """A request that is over. `ended_ns` is a Unix time, `ended_at` the same on the clock of the
    timing, in seconds.
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
    """Every call costs some ten microseconds; sending is done by a thread of OpenTelemetry's."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("bulkhead")
        self._propagator = TraceContextTextMapPropagator()
        self._lane = Lane("spans")

    def tell(self, life: Life) -> None:
        """A span of the whole, within its client's trace if it has sent one, and of each phase."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        whole = self._tracer.start_span(
            life.name,
            self._propagator.extract(life.headers),
            SpanKind.SERVER,
            {name: value for name, value in life.attributes.items() if value is not None},
            start_time=life.ended_ns - int(life.seconds * _NS),
        )
        if life.failed:
            whole.set_status(Status(StatusCode.ERROR))
        within = set_span_in_context(whole)
        for name, begin_ns, end_ns in _phases(life):
            self._tracer.start_span(name, within, start_time=begin_ns).end(end_ns)
        whole.end(life.ended_ns)

    async def close(self) -> None:
        """Send what is left, if somebody takes it."""
        try:
            await self._lane.run(self._provider.shutdown, _FLUSH_S, "the collector of spans")
        except OSError as error:
            logger.warning("The last spans were not sent: %s", error)


def _phases(life: Life) -> Iterator[tuple[str, int, int]]:
    """Names, begins and ends of what its answer waited for."""
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
    """None: nobody wants them, or the extra is missing, which is logged."""
    wanted = any(environment.get(name) for name in _ADDRESSES)
    if not wanted or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        logger.warning("No spans are sent (%s): pip install 'mlx-bulkhead[otel]'", error)
        return None
    named: dict[str, Any] = {SERVICE_NAME: environment.get("OTEL_SERVICE_NAME", "bulkhead")}
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Spans(provider)
