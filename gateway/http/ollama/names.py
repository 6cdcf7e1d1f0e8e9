"""The names of models as Ollama's clients write them: with a tag."""

from __future__ import annotations

from starlette.requests import Request

from gateway.http.model_call import ModelCall
from gateway.models.roster import LATEST
from gateway.system.refusal import Refusal


def call_of(request: Request, name: str | None) -> ModelCall:
    """The model of an id or alias.

    Raises:
        Refusal: there is none, or it isn't named.
    """
    if not name:
        raise Refusal(
            "invalid_request_error", "model is missing: name one of /api/tags.", param="model"
        )
    return ModelCall(request, name)


def tagged(model_id: str) -> str:
    """The id with a tag: clients that compare names add it to those without one."""
    return model_id if ":" in model_id.rpartition("/")[2] else model_id + LATEST
