"""GET /openapi.json."""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.openapi.document import make_document
from gateway.http.openapi.operation import Described, Operation
from gateway.system.lane import Lane

# Milliseconds on a machine at rest.
_MADE_S: Final = 60.0


class Document:
    """Made when it is first asked for, beside the event loop, and kept."""

    def __init__(self) -> None:
        self._lane = Lane("openapi")
        self._text: bytes | None = None

    async def text(self, request: Request) -> bytes:
        if self._text is None:
            make = partial(make_document, request.app.routes)
            self._text = await self._lane.run(make, _MADE_S, "/openapi.json")
        return self._text


async def openapi(request: Request) -> Response:
    document: Document = request.app.state.document
    return Response(await document.text(request), media_type="application/json")


routes = [
    Described(
        "/openapi.json",
        openapi,
        Operation(summary="This document", tag="probes", answer=dict),
    )
]
