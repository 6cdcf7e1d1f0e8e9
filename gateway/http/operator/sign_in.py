"""Signing in on the page by a code that works once, which the operator's commands ask for."""

from __future__ import annotations

import time

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.access.caller import shown_key
from gateway.access.keys import ApiKeys
from gateway.access.sign_ins import CODE_S, SESSION_S
from gateway.http.wire.bodies import json_response, read_json
from gateway.http.wire.command_bodies import PageCode
from gateway.http.wire.openapi import Operation, Routes
from gateway.system.refusal import Refusal

sign_in_routes = Routes("operation")
routes = Routes("operation")


class ShownCode(Struct, forbid_unknown_fields=True):
    code: str


class PageSession(Struct):
    """`key` is what the page shows in place of the admin key."""

    key: str
    expires_in_s: float = SESSION_S


class SignedOut(Struct):
    """`signed_out` is false if the key that was shown is no session of the page."""

    signed_out: bool


@sign_in_routes.post(
    "/page/codes", Operation("A code that signs in the page once", others={201: PageCode})
)
async def make_code(request: HttpRequest) -> Response:
    keys: ApiKeys = request.app.state.keys
    now = time.monotonic()
    if keys.sign_ins.find(shown_key(request.scope["headers"]) or b"", now) is not None:
        # Else whoever got hold of a session could go on for ever.
        raise Refusal(
            "permission_denied", "A session of the page makes no codes: `bulkhead page` does."
        )
    code = keys.sign_ins.code(now) if keys.required else None
    return json_response(PageCode(code, CODE_S), status_code=201)


@routes.post(
    "/ui/session",
    Operation(
        "Exchange a code for a session of the page",
        body=ShownCode,
        others={201: PageSession},
        refusals=("rate_limit_exceeded",),
    ),
)
async def begin(request: HttpRequest) -> Response:
    keys: ApiKeys = request.app.state.keys
    shown = await read_json(request, ShownCode)
    now = time.monotonic()
    if wait_s := keys.sign_ins.wait_s(now):
        raise Refusal(
            "rate_limit_exceeded",
            f"Too many wrong codes came: sign in with the admin key, or try again in {wait_s} s.",
            retry_after_s=wait_s,
        )
    secret = keys.sign_ins.exchange(shown.code, now)
    if secret is None:
        raise Refusal(
            "invalid_api_key",
            f"This code was used already, or is older than {CODE_S:.0f} s: `bulkhead page` makes "
            "another.",
        )
    return json_response(PageSession(secret), status_code=201)


@routes.delete("/ui/session", Operation("End the session of the page", answer=SignedOut))
async def end(request: HttpRequest) -> Response:
    keys: ApiKeys = request.app.state.keys
    secret = shown_key(request.scope["headers"]) or b""
    return json_response(SignedOut(keys.sign_ins.end(secret, time.monotonic())))
