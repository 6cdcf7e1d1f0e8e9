"""GET /metrics: Prometheus' text format."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.connection.door import Door
from gateway.http.connection.reception import Doing
from gateway.http.metrics.counted import (
    Counted,
    connections,
    counted,
    counted_http,
    events,
    lag,
    refusals,
)
from gateway.http.metrics.gauges import gauges
from gateway.http.metrics.http_meter import HttpMeter
from gateway.http.metrics.process import process
from gateway.http.openapi.operation import Described, Operation
from gateway.http.status import gateway_status
from gateway.models.fleet import Fleet
from gateway.system.lane import Lane
from gateway.system.refusal import Refusal

# A text of many models takes longer to write than the loop may stand still.
_writer: Final = Lane("metrics")
_WRITTEN_S: Final = 10.0
_RETRY_AFTER_S: Final = 10


async def metrics(request: Request) -> Response:
    state = request.app.state
    known = gauges(gateway_status(state.fleet, state.reloader.present))
    families = [*known, *_counted(state.fleet, state.http_meter, state.door)]
    try:
        text = await _writer.run(functools.partial(_written, families), _WRITTEN_S, "/metrics")
    except OSError as error:
        raise Refusal(
            "overloaded",
            f"The metrics can't be written now: {error}.",
            retry_after_s=_RETRY_AFTER_S,
        ) from error
    return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})


def _counted(fleet: Fleet, http: HttpMeter, door: Door) -> Iterator[Metric]:
    yield from counted(
        Counted(
            each.model.id,
            each.traffic.meter,
            each.traffic.parked,
            each.traffic.prompt_tokens,
            each.traffic.cached_tokens,
            each.recovery.restarts_by,
        )
        for each in fleet.roster.configured.values()
    )
    yield events(fleet.events.counts)
    yield from counted_http(http)
    yield connections({doing.name.lower(): door.count(doing) for doing in Doing})
    yield refusals(door.refused)
    yield lag(fleet.lag.late_s)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _written(families: list[Metric]) -> bytes:
    return generate_latest(_Families([*families, *process()]))


_METRICS: Final = Operation(summary="Figures for Prometheus", tag="probes", answer="text/plain")

routes = [Described("/metrics", metrics, _METRICS)]
