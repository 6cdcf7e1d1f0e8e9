"""Which requests are served: none of foreign web pages, and only requests that their API key
allows. Requests are counted against the limits of their keys.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import time
from collections.abc import Collection, Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access.api_key import HeldKey
from gateway.access.caller import (
    ANYBODY,
    STRANGER,
    Caller,
    NeededKey,
    proxy_header,
    shown_key,
)
from gateway.access.keys import ApiKeys, ApiKeySession, KeySession
from gateway.access.limits import Denial, Seat, Spending
from gateway.http.wire.access_log import record_of
from gateway.http.wire.answer import Framing, framing_of
from gateway.http.wire.errors import error_response, note_refusal
from gateway.models.fleet import Fleet
from gateway.system.notation import is_loopback
from gateway.system.refusal import Refusal
from protocol.answers import Usage

_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
# For a browser all servers of this machine are the same site: ports are a part of origins, but not
# of sites.
_FOREIGN_SITES: Final = ("cross-site", "same-site")
_ALL_PAGES: Final = "://*"
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
    numeric address is allowed as the host: DNS rebinding needs a name. With `opens_page` the
    request may come from a link on another site.
    """
    host = _only(headers, "host")
    # A client of HTTP/1.0 may send no Host, but browsers always send one.
    if not (http_1_0 and "host" not in headers):
        if host is None:
            return "The request needs one Host header, not more."
        named = _HOST.fullmatch(host)
        name = named["name"].strip("[]") if named else None
        ours = name is not None and (is_loopback(name) or name in hosts)
        if not (ours or (addresses and _is_address(name))):
            return _unknown_host(host, name)
    if "origin" not in headers:
        followed = opens_page and _is_followed_link(headers)
        if headers.get("sec-fetch-site") in _FOREIGN_SITES and not followed:
            return (
                "The request comes from a page of another server and has no Origin; "
                "gateway.allowed_origins can allow pages that send one."
            )
        return None
    origin = _only(headers, "origin")
    if is_allowed(origin, origins):
        return None
    page = _ORIGIN.fullmatch(origin or "")
    if page is None or page["host"] != host:
        return (
            f"The Origin {(origin or '')[:200]!r} is not that of this server; "
            "gateway.allowed_origins can allow others."
        )
    return None


def _unknown_host(host: str, name: str | None) -> str:
    """`name` is the host without its port; None if it can't be the name of a host."""
    sentence = (
        f"The Host {host[:200]!r} is refused: it is no name of this machine, and a web page could "
        "reach this gateway by such a name."
    )
    if name is None:
        return sentence
    return (
        f"{sentence} If you want to reach it so, there must be an API key (`bulkhead key add NAME` "
        f'makes one). Then write allowed_hosts = ["{name[:200]}"] under [gateway] in the '
        "configuration, and run `bulkhead config reload`."
    )


def is_allowed(origin: str | None, origins: Collection[str]) -> bool:
    """Whether `origins` have the origin, or all of its scheme, as `app://*`."""
    scheme, mark, _ = (origin or "").partition("://")
    return origin in origins or f"{scheme}{mark}*" in origins


def _is_address(name: str | None) -> bool:
    try:
        ipaddress.ip_address(name or "")
    except ValueError:
        return False
    return True


def _is_followed_link(headers: Headers) -> bool:
    """Whether the user followed a link. The page that has the link can't read the answer."""
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
        f"x-ratelimit-{text}-{what}"
        for text in ("limit", "remaining", "reset")
        for what in ("requests", "tokens")
    ),
)

# Pages that are the same for all callers and change nothing: the operator signs in on the page.
_PAGES: Final = ("/", "/ui", "/ui/")


class OriginMiddleware:
    """Refuses requests with a foreign Host or Origin, on every path. Links on other sites may lead
    only to `_PAGES`.
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
        elif is_allowed(_only(headers, "origin"), settings.allowed_origins):
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
                allow_origin_regex="|".join(
                    re.escape(origin.removesuffix("*")) + ".*"
                    for origin in origins
                    if origin.endswith(_ALL_PAGES)
                )
                or None,
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


_KEY: Final = "caller"
_SEAT: Final = "seat"


def caller_of(request: HttpRequest) -> Caller:
    caller: Caller = request.scope["state"][_KEY]
    return caller


def seat_of(request: HttpRequest) -> Seat | None:
    """The request's place within the limits of its key. None: the key has no limits."""
    seat: Seat | None = request.scope["state"].get(_SEAT)
    return seat


def take_places(request: HttpRequest, answers: Sequence[Spending]) -> None:
    """Count the answers against the limits of the request's key.

    Raises:
        Refusal: they are too many at once.
    """
    seat = seat_of(request)
    if seat is not None and (denial := seat.reserve(answers)) is not None:
        raise _denied(caller_of(request).name, denial)


class AuthMiddleware:
    """Finds the caller of each request by its key. Keeps requests within their key's limits."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._keys.required:
            if (header := proxy_header(scope["headers"])) is not None:
                await error_response(_through_proxy(header), scope["path"])(scope, receive, send)
                return
            scope["state"][_KEY] = ANYBODY
            if scope["method"] == "GET" and record_of(scope).access.key is NeededKey.ADMIN:
                # A stream of events doesn't end by itself. This session ends it when the first key
                # is made.
                await self._serve(self._keys.anybody, False, scope, receive, send)
            else:
                await self._app(scope, receive, send)
            return
        try:
            held = self._identify(scope)
        except Refusal as refusal:
            await error_response(refusal, scope["path"])(scope, receive, send)
            return
        caller = STRANGER if held is None else held.caller
        scope["state"][_KEY] = caller
        record = record_of(scope)
        record.key = caller.name
        if held is None or caller.name is None:
            await self._app(scope, receive, send)
            return
        work = record.access.counts
        try:
            await self._serve(self._keys.session(held), work, scope, receive, send)
        finally:
            if work and (usage := record.uncounted) is not None:
                self._keys.account(caller.name, usage)

    def _identify(self, scope: Scope) -> HeldKey | None:
        """The key of the request; None: it shows none that is valid, and needs none.

        Raises: Refusal: the request has no valid key, or its key doesn't allow the request.
        """
        access = record_of(scope).access
        need = access.key
        secret = shown_key(scope["headers"])
        held = None if secret is None else self._keys.find(secret)
        if held is None:
            if need is NeededKey.NOTHING:
                return None
            raise _unknown(need, shown=secret is not None)
        record_of(scope).key = held.caller.name
        if held.key is not None and held.key.expired(time.time()):
            if need is NeededKey.NOTHING:
                return None
            raise Refusal("invalid_api_key", f"The API key {held.key.name!r} has expired.")
        if held.caller.reads:
            if need is not NeededKey.NOTHING and not access.reads:
                raise Refusal(
                    "permission_denied",
                    f"The API key {held.caller.name!r} only reads: status, models, events, "
                    "requests, usage and metrics. It gives no orders, makes no model work and sees "
                    "no logs.",
                )
        elif need is NeededKey.ADMIN and not held.caller.admin:
            raise Refusal(
                "permission_denied", f"The API key {held.caller.name!r} is not the admin key."
            )
        return held

    async def _serve(
        self, session: KeySession, work: bool, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve the request within the limits of its key, and until the key is revoked."""
        sending = _Sending(send, session)
        task = asyncio.current_task()
        assert task is not None
        seat = None
        if work and isinstance(session, ApiKeySession):
            admitted = session.limits.admit(time.monotonic())
            if isinstance(admitted, Denial):
                refusal = _denied(session.name, admitted)
                await error_response(refusal, scope["path"])(scope, receive, sending.send)
                return
            scope["state"][_SEAT] = seat = admitted
        session.add(task)
        try:
            await self._app(scope, receive, sending.send)
        except asyncio.CancelledError:
            if session.closed is None:
                raise
            task.uncancel()
            await sending.end(scope, receive)
        finally:
            session.remove(task)
            if seat is not None and isinstance(session, ApiKeySession):
                session.limits.spend(time.monotonic(), _tokens(record_of(scope).uncounted))
                seat.release()


class _Sending:
    """Sends a response with headers about the key's limits. Ends it when the key is revoked."""

    def __init__(self, send: Send, session: KeySession) -> None:
        self._send = send
        self._session = session
        self._started = False
        self._framing: Framing | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            headers = [*message.get("headers", ())]
            self._framing = framing_of(headers)
            if isinstance(self._session, ApiKeySession):
                headers += self._session.limits.headers(time.monotonic())
            message["headers"] = headers
        await self._send(message)

    async def end(self, scope: Scope, receive: Receive) -> None:
        """Tell the client that its key was revoked.

        Raises:
            Refusal: the response has begun and is no stream, so the connection must be cut.
        """
        assert self._session.closed is not None
        refusal = Refusal("invalid_api_key", self._session.closed)
        if not self._started:
            await error_response(refusal, scope["path"])(scope, receive, self._send)
        elif self._framing is not None:
            note_refusal(scope, refusal)
            event = self._framing.failure(refusal, scope["path"])
            await self._send({"type": "http.response.body", "body": event, "more_body": False})
        else:
            raise refusal


def _denied(name: str | None, denial: Denial) -> Refusal:
    again = f"try again in {denial.retry_after_s} s"
    if denial.retry_after_s is None:
        again = "ask for fewer answers"
    return Refusal(
        "rate_limit_exceeded",
        f"The API key {name!r} {denial.reason}: {again}.",
        retry_after_s=denial.retry_after_s,
        lasting=denial.retry_after_s is None,
    )


def _tokens(usage: Usage | None) -> int:
    return 0 if usage is None else usage.prompt_tokens + usage.completion_tokens


def _through_proxy(header: str) -> Refusal:
    return Refusal(
        "permission_denied",
        f"This request came through a proxy (it has {header[:100]!r}), and without API keys anyone "
        "who reaches the proxy could act as the operator: make a key with `bulkhead key add NAME` "
        "on the gateway's machine, and send it as Authorization: Bearer KEY.",
    )


def _unknown(need: NeededKey, *, shown: bool) -> Refusal:
    if shown:
        sentence = "The API key is not known here, or was revoked."
    elif need is NeededKey.ADMIN:
        sentence = (
            "This needs the admin key: send Authorization: Bearer KEY. It is in admin.key in the "
            "gateway's state folder."
        )
    else:
        sentence = (
            "An API key is needed: send Authorization: Bearer KEY, or x-api-key: KEY. "
            "`bulkhead key add NAME` makes one."
        )
    return Refusal("invalid_api_key", sentence)
