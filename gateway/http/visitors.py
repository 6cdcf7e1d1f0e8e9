"""Keeps web pages away, but for those that the configuration allows: these get CORS."""

from __future__ import annotations

import socket
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.connection.origins import complaint
from gateway.http.errors import error_response
from gateway.models.fleet import Fleet
from gateway.system.refusal import Refusal

_EXPOSED: Final = (
    "x-request-id",
    "x-mailbox-id",
    "x-bulkhead-left-out",
    "x-bulkhead-not-enforced",
    "retry-after",
    "x-should-retry",
    *(
        f"x-ratelimit-{each}-{what}"
        for each in ("limit", "remaining", "reset")
        for what in ("requests", "tokens")
    ),
)


# What is the same for everybody, and does nothing: the page signs in by itself.
_PAGES: Final = ("/", "/ui", "/ui/")


class Visitors:
    """Refuses requests with a foreign Host or Origin, on every path. Only links from elsewhere may
    be followed to the pages.
    """

    def __init__(self, app: ASGIApp, fleet: Fleet, *, exposed: bool) -> None:
        """`exposed`: others than this machine come, by its addresses and its own names."""
        self._app = app
        self._fleet = fleet
        self._exposed = exposed
        self._own_names = _own_names() if exposed else ()
        self._origins: tuple[str, ...] = ()
        self._for_pages: ASGIApp = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        settings = self._fleet.settings.gateway
        reason = complaint(
            headers,
            http_1_0=scope["http_version"] == "1.0",
            hosts=(*self._own_names, *settings.allowed_hosts),
            origins=settings.allowed_origins,
            addresses=self._exposed,
            opens_page=scope["method"] == "GET" and scope["path"] in _PAGES,
        )
        if reason is not None:
            refusal = Refusal("permission_denied", reason)
            await error_response(refusal, scope["path"])(scope, receive, send)
        elif headers.get("origin", "").lower() in settings.allowed_origins:
            await self._cors(settings.allowed_origins)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _cors(self, origins: tuple[str, ...]) -> ASGIApp:
        """For the origins that are allowed at present."""
        if origins != self._origins:
            self._origins = origins
            self._for_pages = CORSMiddleware(
                self._app,
                allow_origins=origins,
                allow_methods=("GET", "POST", "DELETE"),
                allow_headers=("*",),
                allow_private_network=True,
                expose_headers=_EXPOSED,
            )
        return self._for_pages


def _own_names() -> tuple[str, ...]:
    """As the machine calls itself, and as Bonjour and Avahi do in its network."""
    name = socket.gethostname().lower().removesuffix(".local")
    return name, f"{name}.local"
