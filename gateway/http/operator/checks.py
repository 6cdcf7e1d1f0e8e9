"""Checks of models: start, progress, result, end."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.access.caller import NeededKey
from gateway.config.model import Model
from gateway.http.wire.auth import caller_of
from gateway.http.wire.bodies import event_stream, json_response, read_json, states_until_over
from gateway.http.wire.command_bodies import CheckOptions
from gateway.http.wire.openapi import EVENT_STREAM, Operation, Routes
from gateway.library.checks import Checks
from gateway.library.library import Library
from gateway.models.check_reports import CheckReport
from gateway.models.fleet import Fleet
from gateway.system.refusal import Refusal

routes = Routes("operation", "/admin/v1", NeededKey.ADMIN)

_PATH: Final = "/models/{model_id:path}/check"


@routes.post(
    _PATH,
    Operation(
        "Check a model",
        body=CheckOptions,
        body_optional=True,
        answer=CheckReport,
        events=CheckReport,
        stream=EVENT_STREAM,
        refusals=(
            "model_not_found",
            "model_unavailable",
            "queue_full",
            "insufficient_memory",
            "shutting_down",
        ),
    ),
)
async def check(request: HttpRequest) -> Response:
    """Check a model in a spare process, beside what serves. The model is an id, or a repository or
    folder of the library, also one that isn't served. If a check of the model runs, answer with
    that one. A client that leaves doesn't end the check.
    """
    options = await read_json(request, CheckOptions, optional=True)
    fleet: Fleet = request.app.state.fleet
    fleet.check_serves()
    fleet.check_decides()
    running = _checks(request).start(await _model(request), options.seconds)
    if options.stream:
        return event_stream(states_until_over("check", lambda: running.report, running.next_change))
    return json_response(await running.result())


@routes.get(
    _PATH,
    Operation(
        "The result of a model's check",
        answer=CheckReport,
        refusals=("model_not_found", "not_found"),
        reads=True,
    ),
)
async def show_check(request: HttpRequest) -> Response:
    """Answer with the check that runs, or else with the last one that has ended."""
    model = await _model(request)
    fleet: Fleet = request.app.state.fleet
    await fleet.check_reports.look()
    return json_response(_checks(request).report(model))


@routes.delete(
    _PATH,
    Operation(
        "Cancel a model's check", answer=CheckReport, refusals=("model_not_found", "not_found")
    ),
)
async def cancel_check(request: HttpRequest) -> Response:
    """Answer when the process of the check has ended. The result of an earlier check stays."""
    return json_response(await _checks(request).cancel(await _model(request)))


def _checks(request: HttpRequest) -> Checks:
    checks: Checks = request.app.state.checks
    return checks


async def _model(request: HttpRequest) -> Model:
    """The model of this name: one that is served, or another one on the disks.

    Raises: Refusal: there is none.
    """
    fleet: Fleet = request.app.state.fleet
    library: Library = request.app.state.library
    name = request.path_params["model_id"]
    try:
        return fleet.roster.find(name, caller_of(request)).model
    except Refusal as unknown:
        try:
            entry = await library.find(name)
        except Refusal:
            raise unknown from None
    return library.model(entry)
