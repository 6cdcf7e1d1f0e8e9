"""The ASGI application."""

from __future__ import annotations

from typing import NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from gateway.api import admin, completions, embeddings, health, models, rerank
from gateway.api.chat import route as chat
from gateway.api.errors import on_defect, on_http_exception, on_refusal
from gateway.api.messages import route as messages
from gateway.api.record import Recorded
from gateway.api.visitors import Visitors
from gateway.dispatch.refusal import Refusal
from gateway.fleet.fleet import Fleet
from gateway.hub.pulls import Pulls
from gateway.library.library import Library
from gateway.pictures.reader import PictureReader
from gateway.serve.reload import Reloader


class Parts(NamedTuple):
    """What the routes are for."""

    fleet: Fleet
    reloader: Reloader
    pulls: Pulls
    library: Library


def build_app(parts: Parts) -> ASGIApp:
    app = Starlette(
        routes=[
            *health.routes,
            *models.routes,
            *chat.routes,
            *completions.routes,
            *messages.routes,
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
    app.state.fleet = parts.fleet
    app.state.reloader = parts.reloader
    app.state.pulls = parts.pulls
    app.state.library = parts.library
    app.state.pictures = PictureReader()
    return Recorded(Visitors(app, parts.fleet))
