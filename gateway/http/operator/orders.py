"""The operator's orders: to load, unload, restart and kill models, and to change the gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeAlias

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.access.caller import NeededKey
from gateway.config.layers import ConfigError
from gateway.config.tables import Reloaded
from gateway.http.generation.request_memory import RequestMemory
from gateway.http.operator.status import model_status, status_for
from gateway.http.wire.auth import caller_of
from gateway.http.wire.bodies import json_response, read_count, read_json
from gateway.http.wire.command_bodies import ModelStatus, OrderOptions, Status, UpgradeAnswer
from gateway.http.wire.openapi import LOADS, Operation, Query, Routes
from gateway.memory.estimator import UnreadableFilesError
from gateway.memory.forecast import Forecast
from gateway.models.fleet import Fleet
from gateway.models.lifecycle import State
from gateway.models.model_supervisor import ModelSupervisor
from gateway.models.reload import Reloader
from gateway.system.refusal import Refusal

routes = Routes("operation", "/admin/v1", NeededKey.ADMIN)

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


@routes.get("/status", Operation("The whole state", answer=Status, reads=True))
async def show_status(request: HttpRequest) -> Response:
    reloader: Reloader = request.app.state.reloader
    status = status_for(caller_of(request), request.app.state.fleet, reloader.present)
    return json_response(status)


@routes.post("/models/{model_id:path}/load", _order("Load a model"))
async def load(request: HttpRequest) -> Response:
    supervisor, options = await _target(request)
    request.app.state.fleet.check_serves()
    if isinstance(options.context_tokens, int):
        reloader: Reloader = request.app.state.reloader
        await reloader.lengthen(supervisor.model.id, options.context_tokens)
    supervisor.load()
    return await _after_load(request, supervisor, options)


@routes.post("/models/{model_id:path}/unload", _order("Unload a model"))
async def unload(request: HttpRequest) -> Response:
    supervisor, options = await _target(request)
    await _end(supervisor, options, partial(supervisor.unload, hold=options.hold))
    return json_response(model_status(supervisor, request.app.state.fleet))


@routes.post("/models/{model_id:path}/restart", _order("Restart a model"))
async def restart(request: HttpRequest) -> Response:
    supervisor, options = await _target(request)
    request.app.state.fleet.check_serves()
    await _end(supervisor, options, supervisor.restart)
    return await _after_load(request, supervisor, options)


@routes.post("/models/{model_id:path}/kill", _order("Kill a model"))
async def kill(request: HttpRequest) -> Response:
    supervisor, options = await _target(request)
    await _end(supervisor, options, supervisor.kill)
    return json_response(model_status(supervisor, request.app.state.fleet))


@routes.post(
    "/models/{model_id:path}/prompt-cache/clear",
    Operation("Clear a model's cached prompts", answer=Reclaimed, refusals=LOADS),
)
@routes.post(
    "/prompt-cache/clear",
    Operation("Clear all cached prompts", answer=Reclaimed, refusals=("model_unavailable",)),
)
async def clear_prompts(request: HttpRequest) -> Response:
    """Clear the cached prompts of all models, or of one."""
    fleet: Fleet = request.app.state.fleet
    memory: RequestMemory = request.app.state.request_memory
    if "model_id" in request.path_params:
        supervisor = _supervisor(request)
        cleared = await fleet.prompts.clear([supervisor], supervisor.model.id)
        memory.cleared(supervisor.model.id)
    else:
        cleared = await fleet.prompts.clear(fleet.roster.everyone)
        memory.cleared(None)
    if not cleared.failures:
        return json_response(Reclaimed(cleared.reclaimed_bytes))
    failures = "; ".join(cleared.failures)
    raise Refusal(
        "model_unavailable",
        f"Only {cleared.reclaimed_bytes} bytes were cleared: {failures}.",
    )


@routes.get(
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
    supervisor = _supervisor(request)
    configured_tokens = supervisor.model.settings.context_tokens
    tokens = max(1, read_count(request, "context_tokens", configured_tokens))
    try:
        return json_response(await fleet.scheduler.forecast(supervisor.model_memory, tokens))
    except UnreadableFilesError as error:
        raise Refusal("model_unavailable", str(error)) from error


@routes.post("/reload", Operation("Read the configuration again", answer=Reloaded))
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


@routes.post(
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


def _supervisor(request: HttpRequest) -> ModelSupervisor:
    fleet: Fleet = request.app.state.fleet
    return fleet.roster.find(request.path_params["model_id"], caller_of(request))


async def _target(request: HttpRequest) -> tuple[ModelSupervisor, OrderOptions]:
    options = await read_json(request, OrderOptions, optional=True)
    request.app.state.fleet.check_decides()
    return _supervisor(request), options


async def _after_load(
    request: HttpRequest, supervisor: ModelSupervisor, options: OrderOptions
) -> Response:
    """Answer with the model's status; if the options say so, wait for the end of the load first.

    Raises:
        Refusal: the load has ended, and the model is not ready.
    """
    if options.wait:
        await supervisor.condition.until(lambda: supervisor.state in _SETTLED)
        if supervisor.state is not State.READY:
            raise supervisor.condition.failure or Refusal(
                "model_unavailable",
                f"{supervisor.model.id!r} is {supervisor.state}: another order came later.",
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_READING_S):
                await supervisor.until_measured()
    return json_response(model_status(supervisor, request.app.state.fleet))


class _Order(Protocol):
    def __call__(self, *, force: bool) -> None: ...


async def _end(supervisor: ModelSupervisor, options: OrderOptions, order: _Order) -> None:
    """Give an order that ends the model's worker; if the options say so, wait for its end."""
    worker = supervisor.worker
    order(force=options.force)
    if options.wait and worker is not None:
        await supervisor.condition.until(
            lambda: supervisor.worker is not worker or worker.survived_kill
        )
