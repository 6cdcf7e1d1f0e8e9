"""Keeps web pages away from the operator's paths.

A browser on this machine reaches loopback on behalf of any page. Its requests carry the page's
Origin, or, after DNS rebinding, a Host that isn't ours.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.errors import error_response
from gateway.config.loopback import LOOPBACK_NAMES
from gateway.dispatch.refusal import Refusal


class LocalOnly:
    """Refuses requests with a foreign Host or Origin."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if _host_name(f"//{host}") not in LOOPBACK_NAMES:
            refusal = Refusal("permission_denied", f"The Host {host!r} is not this machine.")
        elif origin is not None and _authority(origin) != host:
            refusal = Refusal("permission_denied", f"The Origin {origin!r} is not this server.")
        else:
            await self._app(scope, receive, send)
            return
        await error_response(refusal)(scope, receive, send)


def _authority(url: str) -> str | None:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return None


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
