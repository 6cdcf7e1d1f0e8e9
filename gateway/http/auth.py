"""API keys of HTTP requests: who makes a request, whether they may, and what counts against their
limits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access.caller import (
    ANYBODY,
    STRANGER,
    Caller,
    NeededKey,
    counts,
    needed,
    passed_on,
    shown_key,
)
from gateway.access.keys import ApiKeys, ApiKeySession, KeySession
from gateway.access.limits import Denial, Seat, Spending
from gateway.http.answer import Framing, framing_of
from gateway.http.errors import error_response
from gateway.http.record import Record, note_outcome
from gateway.system.refusal import Refusal
from protocol.answers import Usage

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
    """Count all of these answers against the limits of the request's key.

    Raises:
        Refusal: they are too many at once.
    """
    seat = seat_of(request)
    if seat is not None and (denial := seat.take(answers)) is not None:
        raise _denied(caller_of(request).name, denial)


class AuthMiddleware:
    """Identifies the caller of each request by its key, and keeps the request within its limits."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._keys.required:
            if (header := passed_on(scope["headers"])) is not None:
                await error_response(_passed_on(header), scope["path"])(scope, receive, send)
                return
            scope["state"][_KEY] = ANYBODY
            if scope["method"] == "GET" and needed("GET", scope["path"]) is NeededKey.ADMIN:
                # Streams of events never end by themselves; all other requests do.
                await self._serve(self._keys.anybody, False, scope, receive, send)
            else:
                await self._app(scope, receive, send)
            return
        try:
            caller = self._identify(scope)
        except Refusal as refusal:
            await error_response(refusal, scope["path"])(scope, receive, send)
            return
        scope["state"][_KEY] = caller
        record: Record = scope["state"]["record"]
        record.key = caller.name
        if caller.name is None:
            await self._app(scope, receive, send)
            return
        work = counts(scope["method"], scope["path"])
        try:
            session = self._keys.operator if caller.admin else self._keys.session(caller.name)
            await self._serve(session, work, scope, receive, send)
        finally:
            if work and (usage := _uncounted(record)) is not None:
                self._keys.account(caller.name, usage)

    def _identify(self, scope: Scope) -> Caller:
        """Raises: Refusal: the request has no key, or one that may not do this."""
        need = needed(scope["method"], scope["path"])
        secret = shown_key(scope["headers"])
        held = None if secret is None else self._keys.find(secret)
        if held is None:
            if need is NeededKey.NOTHING:
                return STRANGER
            raise _unknown(need, shown=secret is not None)
        if held.key is not None and held.key.expired(time.time()):
            if need is NeededKey.NOTHING:
                return STRANGER
            raise Refusal("invalid_api_key", f"The API key {held.key.name!r} has expired.")
        if need is NeededKey.ADMIN and not held.caller.admin:
            raise Refusal(
                "permission_denied", f"The API key {held.caller.name!r} is not the admin key."
            )
        return held.caller

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
        session.enter(task)
        try:
            await self._app(scope, receive, sending.send)
        except asyncio.CancelledError:
            if session.closed is None:
                raise
            task.uncancel()
            await sending.end(scope, receive)
        finally:
            session.leave(task)
            if seat is not None and isinstance(session, ApiKeySession):
                record: Record = scope["state"]["record"]
                session.limits.spend(time.monotonic(), _tokens(_uncounted(record)))
                seat.release()


class _Sending:
    """Adds what is left of the key's limits to responses; ends those whose key is revoked."""

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
        """Raises: Refusal: the response has begun and has no way to say this, so the connection
        must be cut.
        """
        assert self._session.closed is not None
        refusal = Refusal("invalid_api_key", self._session.closed)
        if not self._started:
            await error_response(refusal, scope["path"])(scope, receive, self._send)
        elif self._framing is not None:
            note_outcome(scope, refusal.code)
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


def _uncounted(record: Record) -> Usage | None:
    return None if record.counted else record.usage


def _tokens(usage: Usage | None) -> int:
    return 0 if usage is None else usage.prompt_tokens + usage.completion_tokens


def _passed_on(header: str) -> Refusal:
    return Refusal(
        "permission_denied",
        f"A proxy has passed this on (it has {header[:100]!r}), and without API keys everybody who "
        "reaches the proxy would be the operator: make a key with `bulkhead key add NAME` on the "
        "gateway's machine, and send it as Authorization: Bearer KEY.",
    )


def _unknown(need: NeededKey, *, shown: bool) -> Refusal:
    if shown:
        said = "The API key is not known here, or was revoked."
    elif need is NeededKey.ADMIN:
        said = (
            "This needs the admin key: send Authorization: Bearer KEY. It is in admin.key in the "
            "gateway's state folder."
        )
    else:
        said = (
            "An API key is needed: send Authorization: Bearer KEY, or x-api-key: KEY. "
            "`bulkhead key add NAME` makes one."
        )
    return Refusal("invalid_api_key", said)
