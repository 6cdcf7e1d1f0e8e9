"""The ASGI application. A request meets its middlewares in this order:

1. `Addresses` serves each address of /v1 also without /v1.
2. `AccessLog` gives the response its x-request-id, and writes the line of the log.
3. `OriginMiddleware` refuses a foreign Host or Origin.
4. `AuthMiddleware` finds the caller by the key, and keeps the request within the key's limits.
5. `NoCycles` refuses a request that comes back to this gateway through upstreams.
6. `Heads` answers HEAD.
7. `CompressedBodies` decodes the body.

After that the routes get the request (`ROUTES`). An answer meets the middlewares in reverse.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access.keys import ApiKeys
from gateway.history.recorder import Recorder
from gateway.http.anthropic import messages
from gateway.http.generation.pictures import PictureReader
from gateway.http.generation.request_memory import RequestMemory
from gateway.http.ollama import routes as ollama
from gateway.http.ollama.models import ModelFileReader
from gateway.http.openai import chat, completions, responses, vectors
from gateway.http.operator import (
    activity,
    checks,
    keys,
    library,
    logs,
    metrics,
    models,
    orders,
    page,
    status,
)
from gateway.http.operator.page import Page
from gateway.http.passing import routes as passing
from gateway.http.passing.command_calls import CommandClients
from gateway.http.passing.forms import FormFiles
from gateway.http.wire import openapi
from gateway.http.wire.access_log import AccessLog, HttpMeter, Spans
from gateway.http.wire.auth import AuthMiddleware, OriginMiddleware
from gateway.http.wire.compressed_bodies import CompressedBodies
from gateway.http.wire.connection_limits import ConnectionLimiter
from gateway.http.wire.errors import error_response, on_defect, on_http_exception, on_refusal
from gateway.http.wire.finished import FinishedRequests
from gateway.http.wire.openapi import OpenApiDocument
from gateway.library.checks import Checks
from gateway.library.library import LastUsed, Library
from gateway.library.pulls import Pulls
from gateway.mailbox.mailbox import Mailbox
from gateway.models.fleet import Fleet
from gateway.models.reload import Reloader
from gateway.system.refusal import Refusal
from gateway.upstreams.route import comes_back

ROUTES: Final = (
    *page.routes,
    *status.routes,
    *metrics.routes,
    *models.routes,
    *chat.routes,
    *completions.routes,
    *messages.routes,
    *responses.routes,
    *vectors.routes,
    *passing.routes,
    *ollama.routes,
    *orders.routes,
    *keys.routes,
    *library.routes,
    *checks.routes,
    *activity.routes,
    *logs.routes,
    *openapi.routes,
)


_V1: Final = "/v1/"
# The first segments behind /v1.
_SERVED: Final = {
    route.path.removeprefix(_V1).partition("/")[0] for route in ROUTES if route.path.startswith(_V1)
}


class Addresses:
    """Serves what is below /v1 also without /v1, with /v1 twice, and behind several slashes: so
    clients ask whose base address lacks /v1, has one too many, or ends with a slash.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path, raw = scope["path"].lstrip("/"), scope["raw_path"].lstrip(b"/")
            below = path.startswith("v1/")
            while path.startswith("v1/"):
                path = path.removeprefix("v1").lstrip("/")
                raw = raw.partition(b"/")[2].lstrip(b"/")
            if below or path.partition("/")[0] in _SERVED:
                scope = {**scope, "path": _V1 + path, "raw_path": _V1.encode() + raw}
        await self._app(scope, receive, send)


class _HeadDoneError(Exception):
    """Ends the handling of a HEAD request once its head is sent."""


class Heads:
    """Answers HEAD with the head that GET would get. After its head a stream is given up, since it
    may never end.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "more_body": False} if message.get("more_body") else message)
            if message.get("more_body"):
                raise _HeadDoneError

        try:
            await self._app(scope, receive, send_head)
        except _HeadDoneError:
            return


class NoCycles:
    """Refuses requests that this gateway has passed on before, and that have come back."""

    def __init__(self, app: ASGIApp, instance: str) -> None:
        self._app = app
        self._instance = instance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and comes_back(scope["headers"], self._instance):
            refusal = Refusal(
                "loop_detected",
                "The request has been here before: the upstreams of this gateway lead back to it.",
                lasting=True,
            )
            await error_response(refusal, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)


class Parts(NamedTuple):
    """The objects that the routes use."""

    fleet: Fleet
    reloader: Reloader
    mailbox: Mailbox
    keys: ApiKeys
    limiter: ConnectionLimiter
    pulls: Pulls
    checks: Checks
    library: Library
    last_used: LastUsed
    recorder: Recorder
    form_files: FormFiles
    spans: Spans | None


def build_app(parts: Parts, upgrade: orders.Upgrade) -> ASGIApp:
    app = Starlette(
        routes=ROUTES,
        exception_handlers={
            Refusal: on_refusal,
            HTTPException: on_http_exception,
            Exception: on_defect,
        },
    )
    for name, part in parts._asdict().items():
        setattr(app.state, name, part)
    app.state.upgrade = upgrade
    app.state.pictures = PictureReader()
    app.state.page = Page()
    app.state.command_clients = CommandClients()
    app.state.http_meter = HttpMeter()
    app.state.finished = FinishedRequests()
    app.state.request_memory = RequestMemory(parts.fleet, parts.keys)
    app.state.model_files = ModelFileReader()
    app.state.document = OpenApiDocument()
    authorized = AuthMiddleware(
        NoCycles(Heads(CompressedBodies(app)), parts.fleet.upstreams.instance),
        parts.keys,
    )
    same_origin = OriginMiddleware(authorized, parts.fleet, exposed=parts.keys.exposed)
    log = AccessLog(
        same_origin,
        app.state.http_meter,
        app.state.finished,
        ROUTES,
        parts.spans,
        parts.fleet.faults,
    )
    return Addresses(log)
