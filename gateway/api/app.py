"""The ASGI application."""

from __future__ import annotations

from typing import Final, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from gateway.api import (
    admin,
    completions,
    embeddings,
    front,
    health,
    metrics,
    models,
    page,
    rerank,
)
from gateway.api.callers import Callers
from gateway.api.chat import route as chat
from gateway.api.errors import on_defect, on_http_exception, on_refusal
from gateway.api.messages import route as messages
from gateway.api.methods import Heads
from gateway.api.ollama import routes as ollama
from gateway.api.ollama.files import ModelFileReader
from gateway.api.openapi import route as openapi
from gateway.api.openapi.route import Document
from gateway.api.recorded import Recorded
from gateway.api.responses import route as responses
from gateway.api.route_paths import RoutePaths
from gateway.api.visitors import Visitors
from gateway.dispatch.refusal import Refusal
from gateway.edge.door import Door
from gateway.fleet.fleet import Fleet
from gateway.hub.pulls import Pulls
from gateway.keys.keys import Keys
from gateway.library.last_used import LastUsed
from gateway.library.library import Library
from gateway.mailbox.mailbox import Mailbox
from gateway.metrics.http_meter import HttpMeter
from gateway.page.page import Page
from gateway.pictures.reader import PictureReader
from gateway.serve.reload import Reloader
from gateway.telemetry.spans import Spans

ROUTES: Final = (
    *front.routes,
    *health.routes,
    *metrics.routes,
    *models.routes,
    *chat.routes,
    *completions.routes,
    *messages.routes,
    *responses.routes,
    *embeddings.routes,
    *rerank.routes,
    *ollama.routes,
    *admin.routes,
    *page.routes,
    *openapi.routes,
)


class Parts(NamedTuple):
    """What the routes work with."""

    fleet: Fleet
    reloader: Reloader
    mailbox: Mailbox
    keys: Keys
    door: Door
    pulls: Pulls
    library: Library
    last_used: LastUsed
    spans: Spans | None


def build_app(parts: Parts, upgrade: admin.Upgrade) -> ASGIApp:
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
    app.state.http_meter = HttpMeter()
    app.state.model_files = ModelFileReader()
    app.state.document = Document()
    keys = parts.keys
    visitors = Visitors(Callers(Heads(app), keys), parts.fleet, exposed=keys.exposed)
    return Recorded(
        visitors, app.state.http_meter, RoutePaths(ROUTES), parts.spans, parts.fleet.faults
    )
