"""What is known of one HTTP request: its id, and its line in the log once it is over."""

from __future__ import annotations

import logging
import time
from typing import Final

from msgspec import Struct
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.errors import error_response
from gateway.dispatch.refusal import Refusal
from gateway.edge.request_id import HEADER, request_id
from gateway.logs.line import about
from protocol.messages import Usage

logger = logging.getLogger(__name__)

_KEY: Final = "record"


class Record(Struct):
    """`id` is the client's own if it sent a sane one; `key` is the name of the API key it came
    with, None while there are none. The model and the usage are what routes that generate tell.
    """

    id: str
    key: str | None = None
    model: str | None = None
    usage: Usage | None = None
    status: int | None = None


def record_of(request: Request) -> Record:
    record: Record = request.scope["state"][_KEY]
    return record


def note_usage(scope: Scope, usage: Usage) -> None:
    record: Record = scope["state"][_KEY]
    record.usage = usage


class Recorded:
    """Gives every response an x-request-id, and the log a line for each request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        record = Record(request_id(scope["headers"]))
        scope.setdefault("state", {})[_KEY] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                headers[HEADER.decode()] = record.id
                message["headers"] = headers.raw
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            # The client has been told by `on_defect`, or can't be told any more.
            logger.exception("%s", _name(scope), extra=about(request=record.id))
            if record.status is None:
                defect = Refusal("internal_error", "The gateway failed on this request.")
                await error_response(defect)(scope, receive, send_with_id)
        finally:
            _log(scope, record, time.monotonic() - began)


def _log(scope: Scope, record: Record, seconds: float) -> None:
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
            key=record.key,
            model=record.model,
            prompt_tokens=record.usage and record.usage.prompt_tokens,
            cached_tokens=record.usage and record.usage.cached_tokens,
            completion_tokens=record.usage and record.usage.completion_tokens,
            seconds=round(seconds, 3),
        ),
    )


def _name(scope: Scope) -> str:
    return f"{scope['method']} {scope['path']}"
