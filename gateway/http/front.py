"""GET /: what this is, and where to go."""

from __future__ import annotations

import html
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from gateway import VERSION
from gateway.http.openapi.operation import Described, Operation

_WHAT: Final = f"Bulkhead {VERSION}, a server of models on this machine."
_PLACES: Final = (
    ("/ui", "the operator's page"),
    ("/v1", "OpenAI's API and Anthropic's: the base URL of their clients is this, or / alone"),
    ("/api", "Ollama's API"),
    ("/v1/models", "the models"),
    ("/health", "how they are"),
    ("/metrics", "figures for Prometheus"),
    ("/openapi.json", "every route, for programs"),
)
# Prefixes, not pages.
_BASES: Final = ("/v1", "/api")
_HEADERS: Final = {"content-security-policy": "default-src 'none'", "vary": "accept"}


async def front(request: Request) -> Response:
    known = {getattr(each, "path", None) for each in request.app.routes}
    places = [(path, what) for path, what in _PLACES if path in _BASES or path in known]
    if "text/html" not in request.headers.get("accept", ""):
        lines = [_WHAT, *(f"  {path:<14} {what}" for path, what in places)]
        return PlainTextResponse("\n".join(lines) + "\n", headers=_HEADERS)
    items = "".join(
        f"<li>{_link(path)}: {html.escape(what, quote=False)}</li>" for path, what in places
    )
    return HTMLResponse(
        f'<!doctype html><html lang="en"><title>Bulkhead</title><p>{_WHAT}</p><ul>{items}</ul>\n',
        headers=_HEADERS,
    )


def _link(path: str) -> str:
    return path if path in _BASES else f'<a href="{path}">{path}</a>'


routes = [
    Described("/", front, Operation(summary="What this is", tag="probes", answer="text/plain"))
]
