"""Each request's id, its line in the log once it is over, and its place in the metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.connection.request_id import HEADER, request_id
from gateway.http.errors import error_response
from gateway.http.metrics.http_meter import Ended, HttpMeter
from gateway.http.record import CLIENT_LEFT, Record, begin_record
from gateway.http.route_paths import RoutePaths
from gateway.http.spans import Life, Spans
from gateway.system.log_lines import about
from gateway.system.refusal import Refusal
from gateway.system.tasks import Faults

logger = logging.getLogger(__name__)

OK: Final = "ok"


class Recorded:
    """Gives every response an x-request-id, and the log a line for each request."""

    def __init__(
        self,
        app: ASGIApp,
        meter: HttpMeter,
        routes: RoutePaths,
        spans: Spans | None,
        faults: Faults,
    ) -> None:
        self._app = app
        self._meter = meter
        self._routes = routes
        self._spans = spans
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        record = Record(request_id(scope["headers"]))
        begin_record(scope, record)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                headers[HEADER.decode()] = record.id
                message["headers"] = headers.raw
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            # The client has been told by `on_defect`, or can't be told any more.
            self._faults.note(f"{scope['method']} {self._routes.of(scope)}", error, time.time())
            logger.exception("%s", _name(scope), extra=about(request=record.id))
            if record.status is None:
                defect = Refusal("internal_error", "The gateway failed on this request.")
                await error_response(defect)(scope, receive, send_with_id)
        finally:
            self._end(scope, record, time.monotonic() - began)

    def _end(self, scope: Scope, record: Record, seconds: float) -> None:
        outcome = record.outcome or (CLIENT_LEFT if record.status is None else OK)
        route = self._routes.of(scope)
        self._meter.end(Ended(route, record.model or "", outcome), seconds)
        _log(scope, record, outcome, seconds)
        if self._spans is not None and record.model is not None:
            self._spans.tell(_life(scope, record, route, outcome, seconds))


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
    """Who only looks is seen at the level of debugging: probes and pages ask every second."""
    looks = scope["method"] in ("GET", "HEAD") and record.status in (200, 304)
    logger.log(
        logging.DEBUG if looks else logging.INFO,
        "%s: %s",
        _name(scope),
        record.status or "the client left",
        extra=about(
            request=record.id,
            method=scope["method"],
            path=scope["path"],
            status=record.status,
            outcome=outcome,
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


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _name(scope: Scope) -> str:
    return f"{scope['method']} {scope['path']}"
