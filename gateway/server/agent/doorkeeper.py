"""Lets in who has the key, and nobody else, not even to a path that isn't there."""

from __future__ import annotations

import hmac
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.access.api_key import digest_of
from gateway.access.caller import shown_key
from gateway.http.connection.request_id import request_id
from gateway.http.errors import error_response
from gateway.http.record import Record, begin_record
from gateway.system.refusal import Refusal

_REFUSED: Final = "The agent's key is needed: send Authorization: Bearer KEY."


class Doorkeeper:
    """Goes around the application."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._digest = digest_of(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin_record(scope, Record(request_id(scope["headers"])))
        shown = shown_key(scope["headers"])
        # Of digests, so that the time tells nothing of the key, not even its length.
        if shown is None or not hmac.compare_digest(digest_of(shown), self._digest):
            refusal = Refusal("invalid_api_key", _REFUSED)
            await error_response(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)
