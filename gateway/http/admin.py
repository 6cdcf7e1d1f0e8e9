"""/admin/v1: status, and the operator's verbs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeAlias

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Mount

from gateway.access.api_key import KeyBody, KeyList, NewKey
from gateway.access.key_file import KeyFileError, NoSuchKeyError
from gateway.access.keys import ApiKeys
from gateway.access.limits import KeyUsage, UsageList
from gateway.config.layers import ConfigError
from gateway.config.tables import Reloaded
from gateway.http.auth import caller_of
from gateway.http.bodies import json_response, read_count, read_json
from gateway.http.command_bodies import ModelStatus, OrderOptions, Status, UpgradeAnswer
from gateway.http.errors import invalid
from gateway.http.library import library_routes
from gateway.http.live import live_routes
from gateway.http.openapi import LOADS, Described, Operation, Query
from gateway.http.status import gateway_status, model_status
from gateway.memory.estimator import UnreadableFilesError
from gateway.memory.forecast import Forecast
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.models.lifecycle import State
from gateway.models.reload import Reloader
from gateway.system.refusal import Refusal


async def list_keys(request: HttpRequest) -> Response:
    keys: ApiKeys = request.app.state.keys
    await keys.look()
    return json_response(KeyList([KeyBody.of(each) for each in keys.all]))


async def add_key(request: HttpRequest) -> Response:
    keys: ApiKeys = request.app.state.keys
    new = await read_json(request, NewKey)
    if new.expires_at is not None and new.expires_at <= time.time():
        raise invalid(
            f"expires_at is {new.expires_at:.0f}, which is in the past: send a Unix time in the "
            "future, in seconds.",
            "expires_at",
        )
    try:
        key, secret = await keys.add(new.name, new.terms)
    except KeyFileError as error:
        raise Refusal("invalid_request_error", str(error)) from error
    except OSError as error:
        raise _unwritten(error) from error
    return json_response(KeyBody.of(key, secret), status_code=201)


async def revoke_key(request: HttpRequest) -> Response:
    keys: ApiKeys = request.app.state.keys
    try:
        return json_response(KeyBody.of(await keys.revoke(request.path_params["name"])))
    except NoSuchKeyError as error:
        raise Refusal("not_found", str(error)) from error
    except (KeyFileError, OSError) as error:
        raise _unwritten(error) from error


async def usage(request: HttpRequest) -> Response:
    keys: ApiKeys = request.app.state.keys
    return json_response(
        UsageList([KeyUsage(name, *counts) for name, counts in keys.used().items()])
    )


def _unwritten(error: Exception) -> Refusal:
    return Refusal("internal_error", f"The keys can't be changed: {error}")


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


_SETTLED: Final = (State.READY, State.UNLOADED, State.HELD, State.BACKOFF, State.FAILED)
_FIRST_READING_S: Final = 2.0


class Reclaimed(Struct):
    """Bytes of memory and disk that were freed."""

    reclaimed_bytes: int


# Replaces this gateway with the installed version. Raises: Refusal: this gateway goes on; the
# message says why.
Upgrade: TypeAlias = Callable[[], Awaitable[UpgradeAnswer]]


async def status(request: HttpRequest) -> Response:
    reloader: Reloader = request.app.state.reloader
    return json_response(gateway_status(request.app.state.fleet, reloader.present))


async def load(request: HttpRequest) -> Response:
    compartment, options = await _target(request)
    request.app.state.fleet.check_serves()
    compartment.load()
    return await _after_load(request, compartment, options)


async def unload(request: HttpRequest) -> Response:
    compartment, options = await _target(request)
    await _end(compartment, options, partial(compartment.unload, hold=options.hold))
    return json_response(model_status(compartment, request.app.state.fleet))


async def restart(request: HttpRequest) -> Response:
    compartment, options = await _target(request)
    request.app.state.fleet.check_serves()
    await _end(compartment, options, compartment.restart)
    return await _after_load(request, compartment, options)


async def kill(request: HttpRequest) -> Response:
    compartment, options = await _target(request)
    await _end(compartment, options, compartment.kill)
    return json_response(model_status(compartment, request.app.state.fleet))


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
    what = "; ".join(cleared.failures)
    raise Refusal(
        "model_unavailable",
        f"Only {cleared.reclaimed_bytes} bytes were cleared: {what}.",
    )


async def estimate(request: HttpRequest) -> Response:
    """Tell how a load would end now. Nothing is loaded."""
    fleet: Fleet = request.app.state.fleet
    compartment = _compartment(request)
    configured_tokens = compartment.model.settings.context_tokens
    tokens = max(1, read_count(request, "context_tokens", configured_tokens))
    try:
        return json_response(await fleet.scheduler.forecast(compartment.model_memory, tokens))
    except UnreadableFilesError as error:
        raise Refusal("model_unavailable", str(error)) from error


async def reload(request: HttpRequest) -> Response:
    """Read the configuration again. If it has mistakes, the answer is 400 with a line for each, and
    nothing changes.
    """
    reloader: Reloader = request.app.state.reloader
    try:
        return json_response(await reloader.reload())
    except ConfigError as error:
        mistakes = "\n".join(map(str, error.mistakes))
        raise Refusal(
            "invalid_request_error", f"The configuration stays as it was:\n{mistakes}"
        ) from None


async def upgrade(request: HttpRequest) -> Response:
    """Answer once the next gateway serves. If it doesn't start, the answer is the reason, and this
    gateway goes on.
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
    if options.wait:
        await compartment.condition.until(lambda: compartment.state in _SETTLED)
        if compartment.state is not State.READY:
            raise compartment.condition.failure or Refusal(
                "model_unavailable",
                f"{compartment.model.id!r} is {compartment.state}: another command came first.",
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_READING_S):
                await compartment.until_measured()
    return json_response(model_status(compartment, request.app.state.fleet))


class _Order(Protocol):
    def __call__(self, *, force: bool) -> None: ...


async def _end(compartment: Compartment, options: OrderOptions, order: _Order) -> None:
    """Give an order that ends the present worker; wait for that end if the options say so."""
    worker = compartment.worker
    order(force=options.force)
    if options.wait and worker is not None:
        await compartment.condition.until(
            lambda: compartment.worker is not worker or worker.given_up
        )


_STATUS: Final = Operation(summary="Everything that is known", tag="operation", answer=Status)
_RELOAD: Final = Operation(summary="Read the configuration again", tag="operation", answer=Reloaded)
_UPGRADE: Final = Operation(
    summary="Have another gateway take over",
    tag="operation",
    answer=UpgradeAnswer,
    refusals=("model_unavailable", "shutting_down"),
)
_CLEAR: Final = Operation(
    summary="Let go of prompts",
    tag="operation",
    answer=Reclaimed,
    refusals=("model_unavailable",),
)
_ESTIMATE: Final = Operation(
    summary="What a load would bring about",
    tag="operation",
    answer=Forecast,
    query=[Query("context_tokens", "integer", "Of the outline; else the model's own.")],
    refusals=("model_not_found", "model_unavailable"),
)
_ORDER: Final = Operation(
    summary="",
    tag="operation",
    body=OrderOptions,
    body_optional=True,
    answer=ModelStatus,
    refusals=LOADS,
)

routes = [
    Mount(
        "/admin/v1",
        routes=[
            Described("/status", status, _STATUS),
            Described("/reload", reload, _RELOAD, method="POST"),
            Described("/upgrade", upgrade, _UPGRADE, method="POST"),
            Described("/prompt-cache/clear", clear_prompts, _CLEAR, method="POST"),
            Described(
                "/models/{model_id:path}/prompt-cache/clear",
                clear_prompts,
                msgspec.structs.replace(_CLEAR, refusals=LOADS),
                method="POST",
            ),
            *(
                Described(
                    f"/models/{{model_id:path}}/{verb.__name__}",
                    verb,
                    msgspec.structs.replace(_ORDER, summary=f"{verb.__name__.title()} a model"),
                    method="POST",
                )
                for verb in (load, unload, restart, kill)
            ),
            Described("/models/{model_id:path}/estimate", estimate, _ESTIMATE),
            Described("/keys", list_keys, _LIST),
            Described("/keys", add_key, _ADD, method="POST"),
            Described("/keys/{name}", revoke_key, _REVOKE, method="DELETE"),
            Described("/usage", usage, _USAGE),
            *library_routes,
            *live_routes,
        ],
    ),
]
