"""The ASGI application."""

from __future__ import annotations

from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from gateway.api import admin, completions, embeddings, front, health, models, rerank
from gateway.api.callers import Callers
from gateway.api.chat import route as chat
from gateway.api.errors import on_defect, on_http_exception, on_refusal
from gateway.api.messages import route as messages
from gateway.api.methods import Heads
from gateway.api.ollama import routes as ollama
from gateway.api.ollama.files import Library
from gateway.api.openapi import route as openapi
from gateway.api.openapi.route import Document
from gateway.api.record import Recorded
from gateway.api.visitors import Visitors
from gateway.dispatch.refusal import Refusal
from gateway.fleet.fleet import Fleet
from gateway.pictures.reader import PictureReader
from gateway.serve.reload import Reloader

ROUTES: Final = (
    *front.routes,
    *health.routes,
    *models.routes,
    *chat.routes,
    *completions.routes,
    *messages.routes,
    *embeddings.routes,
    *rerank.routes,
    *ollama.routes,
    *admin.routes,
    *openapi.routes,
)


def build_app(fleet: Fleet, reloader: Reloader) -> ASGIApp:
    app = Starlette(
        routes=ROUTES,
        exception_handlers={
            Refusal: on_refusal,
            HTTPException: on_http_exception,
            Exception: on_defect,
        },
    )
    app.state.fleet = fleet
    app.state.reloader = reloader
    app.state.pictures = PictureReader()
    app.state.library = Library()
    app.state.document = Document()
    return Recorded(Visitors(Callers(Heads(app)), fleet))
