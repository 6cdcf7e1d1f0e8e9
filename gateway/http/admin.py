"""/admin/v1: status, and the operator's verbs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeAlias

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

from gateway.config.mistakes import ConfigError
from gateway.http import events, keys, library, live, logs, pulls, requests
from gateway.http.bodies import read_count, read_json
from gateway.http.callers import caller_of
from gateway.http.openapi.operation import LOADS, Described, Operation, Query
from gateway.http.status import ModelStatus, Status, gateway_status, model_status
from gateway.memory.estimator import UnreadableFilesError
from gateway.memory.forecast import Forecast
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.models.lifecycle import State
from gateway.models.reload import Reloaded, Reloader
from gateway.system.refusal import Refusal

_SETTLED: Final = (State.READY, State.UNLOADED, State.HELD, State.BACKOFF, State.FAILED)
_FIRST_READING_S: Final = 2.0


class Reclaimed(Struct):
    """Bytes of memory and disk that are free again."""

    reclaimed_bytes: int


class Upgraded(Struct, frozen=True):
    """`seconds` is how long it took until the next gateway served, and `still_s` for how much of
    that workers held back what they had to say.
    """

    version: str
    version_before: str
    pid: int
    pid_before: int
    seconds: float
    still_s: float


# Has another gateway take over. Raises: Refusal: this one goes on; the text says why.
Upgrade: TypeAlias = Callable[[], Awaitable[Upgraded]]


class Options(Struct, forbid_unknown_fields=True):
    """`wait`: answer when it is done. `force` and `hold` as in the command line's verbs."""

    wait: bool = True
    force: bool = False
    hold: bool = False


async def status(request: Request) -> Response:
    reloader: Reloader = request.app.state.reloader
    return _json(gateway_status(request.app.state.fleet, reloader.present))


async def load(request: Request) -> Response:
    compartment, options = await _target(request)
    request.app.state.fleet.check_serves()
    compartment.load()
    return await _after_load(request, compartment, options)


async def unload(request: Request) -> Response:
    compartment, options = await _target(request)
    await _end(compartment, options, partial(compartment.unload, hold=options.hold))
    return _json(model_status(compartment, request.app.state.fleet))


async def restart(request: Request) -> Response:
    compartment, options = await _target(request)
    request.app.state.fleet.check_serves()
    await _end(compartment, options, compartment.restart)
    return await _after_load(request, compartment, options)


async def kill(request: Request) -> Response:
    compartment, options = await _target(request)
    await _end(compartment, options, compartment.kill)
    return _json(model_status(compartment, request.app.state.fleet))


async def clear_prompts(request: Request) -> Response:
    """Of all models, or of one."""
    fleet: Fleet = request.app.state.fleet
    if "model_id" in request.path_params:
        compartment = _compartment(request)
        cleared = await fleet.prompts.clear([compartment], compartment.model.id)
    else:
        cleared = await fleet.prompts.clear(fleet.roster.everyone)
    if not cleared.failures:
        return _json(Reclaimed(cleared.reclaimed_bytes))
    what = "; ".join(cleared.failures)
    raise Refusal(
        "model_unavailable",
        f"Only {cleared.reclaimed_bytes} bytes were cleared: {what}.",
    )


async def estimate(request: Request) -> Response:
    """What a load would bring about now; nothing is loaded."""
    fleet: Fleet = request.app.state.fleet
    compartment = _compartment(request)
    configured_tokens = compartment.model.settings.context_tokens
    tokens = max(1, read_count(request, "context_tokens", configured_tokens))
    try:
        return _json(await fleet.scheduler.forecast(compartment.model_memory, tokens))
    except UnreadableFilesError as error:
        raise Refusal("model_unavailable", str(error)) from error


async def reload(request: Request) -> Response:
    """400 with every mistake, a line each, if there is one; then nothing has changed."""
    reloader: Reloader = request.app.state.reloader
    try:
        return _json(await reloader.reload())
    except ConfigError as error:
        mistakes = "\n".join(map(str, error.mistakes))
        raise Refusal(
            "invalid_request_error", f"The configuration stays as it was:\n{mistakes}"
        ) from None


async def upgrade(request: Request) -> Response:
    """Answers once the next gateway serves; if it doesn't come up, with the reason, and this one
    goes on.
    """
    replace: Upgrade = request.app.state.upgrade
    return _json(await replace())


def _compartment(request: Request) -> Compartment:
    fleet: Fleet = request.app.state.fleet
    return fleet.roster.find(request.path_params["model_id"], caller_of(request))


async def _target(request: Request) -> tuple[Compartment, Options]:
    options = await read_json(request, Options, optional=True)
    request.app.state.fleet.check_decides()
    return _compartment(request), options


async def _after_load(request: Request, compartment: Compartment, options: Options) -> Response:
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
    return _json(model_status(compartment, request.app.state.fleet))


class _Order(Protocol):
    def __call__(self, *, force: bool) -> None: ...


async def _end(compartment: Compartment, options: Options, order: _Order) -> None:
    """Give an order that ends the present worker; wait for that end if the options say so."""
    worker = compartment.worker
    order(force=options.force)
    if options.wait and worker is not None:
        await compartment.condition.until(
            lambda: compartment.worker is not worker or worker.given_up
        )


def _json(body: Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


_STATUS: Final = Operation(summary="Everything that is known", tag="operation", answer=Status)
_RELOAD: Final = Operation(summary="Read the configuration again", tag="operation", answer=Reloaded)
_UPGRADE: Final = Operation(
    summary="Have another gateway take over",
    tag="operation",
    answer=Upgraded,
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
    body=Options,
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
            *keys.routes,
            *pulls.routes,
            *library.routes,
            *logs.routes,
            *events.routes,
            *requests.routes,
            *live.routes,
        ],
    )
]
