"""/admin/v1: the status, the keys, and the operator's orders."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeAlias

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Mount

from gateway.access.api_key import KeyBody, KeyChange, KeyList, NewKey
from gateway.access.key_file import KeyFileError, NoSuchKeyError
from gateway.access.keys import ApiKeys
from gateway.access.limits import KeyUsage, UsageList
from gateway.config.layers import ConfigError
from gateway.config.machine_rules import why_keys_stay
from gateway.config.tables import Reloaded
from gateway.http.operator.clients import client_routes
from gateway.http.operator.history import history_routes
from gateway.http.operator.library import library_routes
from gateway.http.operator.live import live_routes
from gateway.http.operator.search import search_routes
from gateway.http.operator.sign_in import sign_in_routes
from gateway.http.operator.status import model_status, status_for
from gateway.http.wire.auth import caller_of
from gateway.http.wire.bodies import json_response, read_count, read_json
from gateway.http.wire.command_bodies import ModelStatus, OrderOptions, Status, UpgradeAnswer
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import LOADS, Operation, Query, Routes
from gateway.memory.estimator import UnreadableFilesError
from gateway.memory.forecast import Forecast
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.models.lifecycle import State
from gateway.models.reload import Reloader
from gateway.system.refusal import Refusal

admin_routes = Routes("operation")


@admin_routes.get("/keys", Operation("The API keys", answer=KeyList))
async def list_keys(request: HttpRequest) -> Response:
    keys: ApiKeys = request.app.state.keys
    fleet: Fleet = request.app.state.fleet
    await keys.look()
    return json_response(_listed(keys, why_keys_stay(fleet.settings.gateway)))


@admin_routes.post(
    "/keys", Operation("Add an API key, which is shown once", body=NewKey, others={201: KeyBody})
)
async def add_key(request: HttpRequest) -> Response:
    keys: ApiKeys = request.app.state.keys
    new = await read_json(request, NewKey)
    _check_expiry(new.expires_at)
    try:
        key, secret = await keys.add(new.name, new.terms)
    except KeyFileError as error:
        raise Refusal("invalid_request_error", str(error)) from error
    except OSError as error:
        raise _unwritten(error) from error
    return json_response(KeyBody.of(key, secret), status_code=201)


@admin_routes.post(
    "/keys/{name}",
    Operation(
        "Change the limits of an API key", body=KeyChange, answer=KeyBody, refusals=("not_found",)
    ),
)
async def change_key(request: HttpRequest) -> Response:
    """Change the fields that are sent; null removes a limit. The secret stays, and running requests
    go on.
    """
    keys: ApiKeys = request.app.state.keys
    change = await read_json(request, KeyChange)
    if isinstance(change.expires_at, float):
        _check_expiry(change.expires_at)
    try:
        return json_response(KeyBody.of(await keys.change(request.path_params["name"], change)))
    except NoSuchKeyError as error:
        raise Refusal("not_found", str(error)) from error
    except KeyFileError as error:
        raise Refusal("invalid_request_error", str(error)) from error
    except OSError as error:
        raise _unwritten(error) from error


@admin_routes.delete(
    "/keys/{name}", Operation("Revoke an API key", answer=KeyBody, refusals=("not_found",))
)
async def revoke_key(request: HttpRequest) -> Response:
    keys: ApiKeys = request.app.state.keys
    try:
        return json_response(KeyBody.of(await keys.revoke(request.path_params["name"])))
    except NoSuchKeyError as error:
        raise Refusal("not_found", str(error)) from error
    except (KeyFileError, OSError) as error:
        raise _unwritten(error) from error


@admin_routes.delete("/keys", Operation("Go on without API keys", answer=KeyList))
async def turn_keys_off(request: HttpRequest) -> Response:
    """Revoke all keys. From then on requests need none, as before the first key. The answer is 400
    if other machines can reach the gateway.
    """
    keys: ApiKeys = request.app.state.keys
    fleet: Fleet = request.app.state.fleet
    if (reason := why_keys_stay(fleet.settings.gateway)) is not None:
        raise Refusal("invalid_request_error", reason)
    try:
        await keys.turn_off()
    except (KeyFileError, OSError) as error:
        raise _unwritten(error) from error
    return json_response(_listed(keys))


@admin_routes.get("/usage", Operation("The usage of each API key", answer=UsageList))
async def usage(request: HttpRequest) -> Response:
    keys: ApiKeys = request.app.state.keys
    return json_response(
        UsageList([KeyUsage(name, *counts) for name, counts in keys.used().items()])
    )


def _listed(keys: ApiKeys, kept: str | None = None) -> KeyList:
    return KeyList([KeyBody.of(key) for key in keys.all], keys.required, kept)


def _check_expiry(expires_at: float | None) -> None:
    """Raises: Refusal: it is in the past."""
    if expires_at is not None and expires_at <= time.time():
        raise invalid(
            f"expires_at is {expires_at:.0f}, which is in the past: send a Unix time in the "
            "future, in seconds.",
            "expires_at",
        )


def _unwritten(error: Exception) -> Refusal:
    return Refusal("internal_error", f"The keys can't be changed: {error}")


_SETTLED: Final = (State.READY, State.UNLOADED, State.HELD, State.BACKOFF, State.FAILED)
_FIRST_READING_S: Final = 2.0


class Reclaimed(Struct):
    """Bytes of memory and disk that were freed."""

    reclaimed_bytes: int


# Replaces this gateway with the installed version. Raises: Refusal: the replacement failed, for the
# reason in the message, and this gateway keeps serving.
Upgrade: TypeAlias = Callable[[], Awaitable[UpgradeAnswer]]


def _order(summary: str) -> Operation:
    return Operation(
        summary, body=OrderOptions, body_optional=True, answer=ModelStatus, refusals=LOADS
    )


@admin_routes.get("/status", Operation("The whole state", answer=Status))
async def show_status(request: HttpRequest) -> Response:
    reloader: Reloader = request.app.state.reloader
    status = status_for(caller_of(request), request.app.state.fleet, reloader.present)
    return json_response(status)


@admin_routes.post("/models/{model_id:path}/load", _order("Load a model"))
async def load(request: HttpRequest) -> Response:
    compartment, options = await _target(request)
    request.app.state.fleet.check_serves()
    if isinstance(options.context_tokens, int):
        reloader: Reloader = request.app.state.reloader
        await reloader.lengthen(compartment.model.id, options.context_tokens)
    compartment.load()
    return await _after_load(request, compartment, options)


@admin_routes.post("/models/{model_id:path}/unload", _order("Unload a model"))
async def unload(request: HttpRequest) -> Response:
    compartment, options = await _target(request)
    await _end(compartment, options, partial(compartment.unload, hold=options.hold))
    return json_response(model_status(compartment, request.app.state.fleet))


@admin_routes.post("/models/{model_id:path}/restart", _order("Restart a model"))
async def restart(request: HttpRequest) -> Response:
    compartment, options = await _target(request)
    request.app.state.fleet.check_serves()
    await _end(compartment, options, compartment.restart)
    return await _after_load(request, compartment, options)


@admin_routes.post("/models/{model_id:path}/kill", _order("Kill a model"))
async def kill(request: HttpRequest) -> Response:
    compartment, options = await _target(request)
    await _end(compartment, options, compartment.kill)
    return json_response(model_status(compartment, request.app.state.fleet))


@admin_routes.post(
    "/models/{model_id:path}/prompt-cache/clear",
    Operation("Clear a model's kept prompts", answer=Reclaimed, refusals=LOADS),
)
@admin_routes.post(
    "/prompt-cache/clear",
    Operation("Clear all kept prompts", answer=Reclaimed, refusals=("model_unavailable",)),
)
async def clear_prompts(request: HttpRequest) -> Response:
    """Clear the kept prompts of all models, or of one."""
    fleet: Fleet = request.app.state.fleet
    if "model_id" in request.path_params:
        compartment = _compartment(request)
        cleared = await fleet.prompts.clear([compartment], compartment.model.id)
    else:
        cleared = await fleet.prompts.clear(fleet.roster.everyone)
    if not cleared.failures:
        return json_response(Reclaimed(cleared.reclaimed_bytes))
    failures = "; ".join(cleared.failures)
    raise Refusal(
        "model_unavailable",
        f"Only {cleared.reclaimed_bytes} bytes were cleared: {failures}.",
    )


@admin_routes.get(
    "/models/{model_id:path}/estimate",
    Operation(
        "Forecast a load",
        answer=Forecast,
        query=[Query("context_tokens", "integer", "The context to load; else the model's own.")],
        refusals=("model_not_found", "model_unavailable"),
    ),
)
async def estimate(request: HttpRequest) -> Response:
    """Forecast the result of a load. Nothing is loaded."""
    fleet: Fleet = request.app.state.fleet
    compartment = _compartment(request)
    configured_tokens = compartment.model.settings.context_tokens
    tokens = max(1, read_count(request, "context_tokens", configured_tokens))
    try:
        return json_response(await fleet.scheduler.forecast(compartment.model_memory, tokens))
    except UnreadableFilesError as error:
        raise Refusal("model_unavailable", str(error)) from error


@admin_routes.post("/reload", Operation("Read the configuration again", answer=Reloaded))
async def reload(request: HttpRequest) -> Response:
    """Read the configuration again. If it has mistakes, nothing changes, and the answer is 400 with
    a line for each mistake.
    """
    reloader: Reloader = request.app.state.reloader
    try:
        return json_response(await reloader.reload())
    except ConfigError as error:
        mistakes = "\n".join(map(str, error.mistakes))
        raise Refusal(
            "invalid_request_error", f"The configuration stays as it was:\n{mistakes}"
        ) from None


@admin_routes.post(
    "/upgrade",
    Operation(
        "Have the installed version take over",
        answer=UpgradeAnswer,
        refusals=("model_unavailable", "shutting_down"),
    ),
)
async def upgrade(request: HttpRequest) -> Response:
    """Answer once the next gateway serves. If it can't start, the answer is the reason, and this
    gateway keeps serving.
    """
    replace: Upgrade = request.app.state.upgrade
    return json_response(await replace())


def _compartment(request: HttpRequest) -> Compartment:
    fleet: Fleet = request.app.state.fleet
    return fleet.roster.find(request.path_params["model_id"], caller_of(request))


async def _target(request: HttpRequest) -> tuple[Compartment, OrderOptions]:
    options = await read_json(request, OrderOptions, optional=True)
    request.app.state.fleet.check_decides()
    return _compartment(request), options


async def _after_load(
    request: HttpRequest, compartment: Compartment, options: OrderOptions
) -> Response:
    """Answer with the model's status; if the options say so, wait for the end of the load first.

    Raises:
        Refusal: the load has ended, and the model is not ready.
    """
    if options.wait:
        await compartment.condition.until(lambda: compartment.state in _SETTLED)
        if compartment.state is not State.READY:
            raise compartment.condition.failure or Refusal(
                "model_unavailable",
                f"{compartment.model.id!r} is {compartment.state}: another order came later.",
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_READING_S):
                await compartment.until_measured()
    return json_response(model_status(compartment, request.app.state.fleet))


class _Order(Protocol):
    def __call__(self, *, force: bool) -> None: ...


async def _end(compartment: Compartment, options: OrderOptions, order: _Order) -> None:
    """Give an order that ends the model's worker; if the options say so, wait for its end."""
    worker = compartment.worker
    order(force=options.force)
    if options.wait and worker is not None:
        await compartment.condition.until(
            lambda: compartment.worker is not worker or worker.given_up
        )


routes = [
    Mount(
        "/admin/v1",
        routes=[
            *admin_routes,
            *client_routes,
            *history_routes,
            *library_routes,
            *search_routes,
            *live_routes,
            *sign_in_routes,
        ],
    )
]
