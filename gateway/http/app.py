"""The ASGI application."""

from __future__ import annotations

from typing import Final, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from gateway.access.keys import ApiKeys
from gateway.http import (
    admin,
    completions,
    embeddings,
    front,
    health,
    models,
    rerank,
)
from gateway.http import (
    page_route as page,
)
from gateway.http.callers import Callers
from gateway.http.chat import route as chat
from gateway.http.connection.door import Door
from gateway.http.errors import on_defect, on_http_exception, on_refusal
from gateway.http.messages import route as messages
from gateway.http.methods import Heads
from gateway.http.metrics import route as metrics
from gateway.http.metrics.http_meter import HttpMeter
from gateway.http.ollama import routes as ollama
from gateway.http.ollama.files import ModelFileReader
from gateway.http.openapi import route as openapi
from gateway.http.openapi.route import Document
from gateway.http.page.page import Page
from gateway.http.pictures.reader import PictureReader
from gateway.http.recorded import Recorded
from gateway.http.responses import route as responses
from gateway.http.route_paths import RoutePaths
from gateway.http.spans import Spans
from gateway.http.visitors import Visitors
from gateway.library.library import LastUsed, Library
from gateway.library.pulls import Pulls
from gateway.mailbox.mailbox import Mailbox
from gateway.models.fleet import Fleet
from gateway.models.reload import Reloader
from gateway.system.refusal import Refusal

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
    keys: ApiKeys
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
