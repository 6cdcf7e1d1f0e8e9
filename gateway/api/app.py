"""The ASGI application."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from gateway.api import admin, completions, embeddings, health, models, rerank
from gateway.api.chat import route as chat
from gateway.api.errors import on_defect, on_http_exception, on_refusal
from gateway.api.messages import route as messages
from gateway.api.record import Recorded
from gateway.api.responses import route as responses
from gateway.api.visitors import Visitors
from gateway.dispatch.refusal import Refusal
from gateway.fleet.fleet import Fleet
from gateway.mailbox.mailbox import Mailbox
from gateway.pictures.reader import PictureReader
from gateway.serve.reload import Reloader


def build_app(fleet: Fleet, reloader: Reloader, mailbox: Mailbox) -> ASGIApp:
    app = Starlette(
        routes=[
            *health.routes,
            *models.routes,
            *chat.routes,
            *completions.routes,
            *messages.routes,
            *responses.routes,
            *embeddings.routes,
            *rerank.routes,
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
    app.state.mailbox = mailbox
    app.state.pictures = PictureReader()
    return Recorded(Visitors(app, fleet))
