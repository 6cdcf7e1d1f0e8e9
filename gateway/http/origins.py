"""Keeps web pages of other servers out: requests with a foreign Host or Origin are refused."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.errors import error_response
from gateway.models.fleet import Fleet
from gateway.system.notation import is_loopback
from gateway.system.refusal import Refusal

_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
# Ports separate origins but not sites, so every other server of this machine is the same site.
_FOREIGN_SITES: Final = ("cross-site", "same-site")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(?P<host>[^/@]+)")


def complaint(
    headers: Headers,
    *,
    http_1_0: bool,
    hosts: Collection[str],
    origins: Collection[str],
    addresses: bool = False,
    opens_page: bool = False,
) -> str | None:
    """Why a request is refused. None: it is allowed.

    `hosts` and `origins` are allowed in addition to this machine's own. With `addresses` every
    numeric address is: no DNS lookup was made for it, so DNS rebinding is impossible. With
    `opens_page` the request may come from a link on another site.
    """
    host = _only(headers, "host")
    # Clients of HTTP/1.0 may send no Host. No page in a browser can leave it out.
    if not (http_1_0 and "host" not in headers):
        if host is None:
            return "One Host is needed."
        named = _HOST.fullmatch(host)
        name = named["name"].strip("[]") if named else None
        ours = name is not None and (is_loopback(name) or name in hosts)
        if not (ours or (addresses and _is_address(name))):
            return (
                f"The Host {host[:200]!r} is not this machine; gateway.allowed_hosts can name "
                "others."
            )
    if "origin" not in headers:
        followed = opens_page and _is_followed_link(headers)
        if headers.get("sec-fetch-site") in _FOREIGN_SITES and not followed:
            return (
                "A page of another server asks for this; gateway.allowed_origins can allow pages "
                "that say who they are."
            )
        return None
    origin = _only(headers, "origin")
    if origin in origins:
        return None
    page = _ORIGIN.fullmatch(origin or "")
    if page is None or page["host"] != host:
        return (
            f"The Origin {(origin or '')[:200]!r} is not this server; gateway.allowed_origins can "
            "name others."
        )
    return None


def _is_address(name: str | None) -> bool:
    try:
        ipaddress.ip_address(name or "")
    except ValueError:
        return False
    return True


def _is_followed_link(headers: Headers) -> bool:
    """Whether a link was followed: the page with the link sees nothing of the answer."""
    return (
        _only(headers, "sec-fetch-mode") == "navigate"
        and _only(headers, "sec-fetch-dest") == "document"
    )


def from_page(headers: Headers) -> bool:
    """Whether a page in a browser has made the request."""
    return "origin" in headers


def _only(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    return values[0].lower() if len(values) == 1 else None


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


# Pages that are the same for everybody and change nothing: the operator signs in on the page.
_PAGES: Final = ("/", "/ui", "/ui/")


class OriginMiddleware:
    """Refuses requests with a foreign Host or Origin, on every path. Links on other sites may lead
    to the pages of `_PAGES`, and to nothing else.
    """

    def __init__(self, app: ASGIApp, fleet: Fleet, *, exposed: bool) -> None:
        """With `exposed` other machines may connect, by the addresses and the names of this
        machine.
        """
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
        """The application behind CORS for the origins that are allowed at present."""
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
    """The host name, and the name that Bonjour and Avahi give it in the local network."""
    name = socket.gethostname().lower().removesuffix(".local")
    return name, f"{name}.local"
