"""The ASGI application."""

from __future__ import annotations

import uuid

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api import admin, chat, completions, health, models
from gateway.api.errors import on_defect, on_http_exception, on_refusal
from gateway.dispatch.refusal import Refusal
from gateway.reload import Reloader
from gateway.supervise.fleet import Fleet


class RequestIds:
    """Gives every response an x-request-id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                headers["x-request-id"] = f"req_{uuid.uuid4().hex}"
                message["headers"] = headers.raw
            await send(message)

        await self._app(scope, receive, send_with_id)


def build_app(fleet: Fleet, reloader: Reloader) -> ASGIApp:
    app = Starlette(
        routes=[
            *health.routes,
            *models.routes,
            *chat.routes,
            *completions.routes,
            *admin.routes,
        ],
        exception_handlers={
            Refusal: on_refusal,
            HTTPException: on_http_exception,
            Exception: on_defect,
        },
    )
    app.state.fleet = fleet
    app.state.reloader = reloader
    return RequestIds(app)
