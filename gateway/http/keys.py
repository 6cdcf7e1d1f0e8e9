"""/admin/v1/keys and /admin/v1/usage: API keys, and what was used under them."""

from __future__ import annotations

import time
from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from gateway.access.api_key import KeyBody, KeyList, KeyUsage, NewKey, UsageList
from gateway.access.key_file import KeyFileError, NoSuchKeyError
from gateway.access.keys import ApiKeys
from gateway.http.bodies import read_json
from gateway.http.openapi.operation import Described, Operation
from gateway.system.refusal import Refusal


async def list_keys(request: Request) -> Response:
    keys: ApiKeys = request.app.state.keys
    await keys.look()
    return _json(KeyList([KeyBody.of(each) for each in keys.all]))


async def add_key(request: Request) -> Response:
    keys: ApiKeys = request.app.state.keys
    new = await read_json(request, NewKey)
    if new.expires_at is not None and new.expires_at <= time.time():
        raise Refusal(
            "invalid_request_error",
            f"expires_at is {new.expires_at:.0f}, which is in the past: send a Unix time in the "
            "future, in seconds.",
            param="expires_at",
        )
    try:
        key, secret = await keys.add(new.name, new.terms)
    except KeyFileError as error:
        raise Refusal("invalid_request_error", str(error)) from error
    except OSError as error:
        raise _unwritten(error) from error
    return _json(KeyBody.of(key, secret), status_code=201)


async def revoke_key(request: Request) -> Response:
    keys: ApiKeys = request.app.state.keys
    try:
        return _json(KeyBody.of(await keys.revoke(request.path_params["name"])))
    except NoSuchKeyError as error:
        raise Refusal("not_found", str(error)) from error
    except (KeyFileError, OSError) as error:
        raise _unwritten(error) from error


async def usage(request: Request) -> Response:
    keys: ApiKeys = request.app.state.keys
    return _json(UsageList([KeyUsage(name, *counts) for name, counts in keys.used().items()]))


def _unwritten(error: Exception) -> Refusal:
    return Refusal("internal_error", f"The keys can't be changed: {error}")


def _json(body: Struct, status_code: int = 200) -> Response:
    return Response(
        msgspec.json.encode(body), status_code=status_code, media_type="application/json"
    )


_LIST: Final = Operation(summary="The API keys", tag="operation", answer=KeyList)
_ADD: Final = Operation(
    summary="Add an API key, which is shown once",
    tag="operation",
    body=NewKey,
    others={201: KeyBody},
)
_REVOKE: Final = Operation(
    summary="Revoke an API key", tag="operation", answer=KeyBody, refusals=("not_found",)
)
_USAGE: Final = Operation(summary="What was used", tag="operation", answer=UsageList)

routes = [
    Described("/keys", list_keys, _LIST),
    Described("/keys", add_key, _ADD, method="POST"),
    Described("/keys/{name}", revoke_key, _REVOKE, method="DELETE"),
    Described("/usage", usage, _USAGE),
]
