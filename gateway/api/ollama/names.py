"""The names of models as Ollama's clients write them: with a tag."""

from __future__ import annotations

from starlette.requests import Request

from gateway.api.callers import caller_of
from gateway.dispatch.refusal import Refusal
from gateway.fleet.fleet import Fleet
from gateway.fleet.roster import LATEST
from gateway.model.compartment import Compartment


def find_model(request: Request, name: str | None) -> Compartment:
    """The model of an id or alias.

    Raises:
        Refusal: there is none, or it isn't named.
    """
    if not name:
        raise Refusal(
            "invalid_request_error", "model is missing: name one of /api/tags.", param="model"
        )
    fleet: Fleet = request.app.state.fleet
    return fleet.roster.find(name, caller_of(request))


def tagged(model_id: str) -> str:
    """The id with a tag: clients that compare names add it to those without one."""
    return model_id if ":" in model_id.rpartition("/")[2] else model_id + LATEST
