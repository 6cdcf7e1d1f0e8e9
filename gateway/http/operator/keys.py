"""The API keys, and what was used under each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.access.api_key import KeyBody, KeyChange, KeyList, NewKey
from gateway.access.caller import NeededKey
from gateway.access.key_file import KeyFileError, NoSuchKeyError
from gateway.access.keys import ApiKeys
from gateway.access.limits import KeyUsage, UsageList
from gateway.config.machine_rules import why_keys_stay
from gateway.http.wire.bodies import json_response, read_json
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import Operation, Routes
from gateway.models.fleet import Fleet
from gateway.system.refusal import Refusal

routes = Routes("operation", "/admin/v1", NeededKey.ADMIN)


@routes.get("/keys", Operation("The API keys", answer=KeyList, reads=True))
async def list_keys(request: HttpRequest) -> Response:
    keys = _keys(request)
    fleet: Fleet = request.app.state.fleet
    await keys.look()
    return json_response(_listed(keys, why_keys_stay(fleet.settings.gateway)))


@routes.post(
    "/keys", Operation("Add an API key, which is shown once", body=NewKey, others={201: KeyBody})
)
async def add_key(request: HttpRequest) -> Response:
    new = await read_json(request, NewKey)
    _check_expiry(new.expires_at)
    with _changing(terms=True):
        key, secret = await _keys(request).add(new.name, new.terms)
    return json_response(KeyBody.of(key, secret), status_code=201)


@routes.post(
    "/keys/{name}",
    Operation(
        "Change the limits of an API key", body=KeyChange, answer=KeyBody, refusals=("not_found",)
    ),
)
async def change_key(request: HttpRequest) -> Response:
    """Change the fields that are sent; null removes a limit. The secret stays, and running requests
    go on.
    """
    change = await read_json(request, KeyChange)
    if isinstance(change.expires_at, float):
        _check_expiry(change.expires_at)
    with _changing(terms=True):
        key = await _keys(request).change(request.path_params["name"], change)
    return json_response(KeyBody.of(key))


@routes.delete(
    "/keys/{name}", Operation("Revoke an API key", answer=KeyBody, refusals=("not_found",))
)
async def revoke_key(request: HttpRequest) -> Response:
    with _changing():
        key = await _keys(request).revoke(request.path_params["name"])
    return json_response(KeyBody.of(key))


@routes.delete("/keys", Operation("Go on without API keys", answer=KeyList))
async def turn_keys_off(request: HttpRequest) -> Response:
    """Revoke all keys. From then on requests need none, as before the first key. The answer is 400
    if other machines can reach the gateway.
    """
    keys = _keys(request)
    fleet: Fleet = request.app.state.fleet
    if (reason := why_keys_stay(fleet.settings.gateway)) is not None:
        raise Refusal("invalid_request_error", reason)
    with _changing():
        await keys.turn_off()
    return json_response(_listed(keys))


@routes.get("/usage", Operation("The usage of each API key", answer=UsageList, reads=True))
async def usage(request: HttpRequest) -> Response:
    used = _keys(request).used().items()
    return json_response(UsageList([KeyUsage(name, *counts) for name, counts in used]))


def _keys(request: HttpRequest) -> ApiKeys:
    keys: ApiKeys = request.app.state.keys
    return keys


def _listed(keys: ApiKeys, why_they_stay: str | None = None) -> KeyList:
    return KeyList([KeyBody.of(key) for key in keys.all], keys.required, why_they_stay)


def _check_expiry(expires_at: float | None) -> None:
    """Raises: Refusal: it is in the past."""
    if expires_at is not None and expires_at <= time.time():
        raise invalid(
            f"expires_at is {expires_at:.0f}, which is in the past: send a Unix time in the "
            "future, in seconds.",
            "expires_at",
        )


@contextmanager
def _changing(*, terms: bool = False) -> Iterator[None]:
    """With `terms` the client may have sent terms that no key can have.

    Raises: Refusal: the keys weren't changed.
    """
    try:
        yield
    except NoSuchKeyError as error:
        raise Refusal("not_found", str(error)) from error
    except (KeyFileError, OSError) as error:
        if terms and isinstance(error, KeyFileError):
            raise Refusal("invalid_request_error", str(error)) from error
        raise Refusal("internal_error", f"The keys can't be changed: {error}") from error
