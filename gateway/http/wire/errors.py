"""Refusals as responses: in OpenAI's envelope, and in Anthropic's and Ollama's on their paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from gateway.http.wire.command_bodies import OpenAIErrorBody, OpenAIErrorEnvelope
from gateway.system.notation import nearest, suggestion
from gateway.system.refusal import Refusal

AnyRoute = TypeVar("AnyRoute", bound=BaseRoute)


def routes_at(routes: Iterable[AnyRoute], scope: Scope) -> Iterator[tuple[AnyRoute, Match]]:
    """The routes at the path of a request. A match is partial if the route doesn't take the
    request's method.
    """
    for route in routes:
        if (match := route.matches(scope)[0]) is not Match.NONE:
            yield route, match


def _allowed_methods(request: HttpRequest) -> set[str]:
    """The methods that the routes at the path of a request take."""
    routes = routes_at(request.app.routes, request.scope)
    return set().union(*(route.methods or () for route, _ in routes))


def invalid(message: str, param: str) -> Refusal:
    """The refusal of a request because of one of its fields or headers."""
    return Refusal("invalid_request_error", message, param=param)


class PictureError(Exception):
    """A picture can't be read. The text is the reason, as the end of a sentence."""


# The outcomes of a request whose client left, and of one that a command's server or an upstream has
# answered with an error of its own. Other failures have the code of an error.
CLIENT_LEFT: Final = "client_left"
PASSED_ERROR: Final = "passed_error"
_OUTCOME: Final = "outcome"
_SENTENCE: Final = "error_sentence"


def note_outcome(scope: Scope, outcome: str) -> None:
    """Note why a request ended, for the log and the metrics: an error's code, CLIENT_LEFT or
    PASSED_ERROR.
    """
    scope.setdefault("state", {})[_OUTCOME] = outcome


def note_refusal(scope: Scope, refusal: Refusal) -> None:
    """Note that a request ended with this refusal, for the log and the metrics."""
    note_outcome(scope, refusal.code)
    scope["state"][_SENTENCE] = refusal.message


def error_sentence(scope: Scope) -> str | None:
    """The sentence of the error that the client got; None: there was no error of this gateway."""
    sentence: str | None = scope["state"].get(_SENTENCE)
    return sentence


def outcome_of(scope: Scope) -> str | None:
    """The outcome that was noted. None: the status of the response tells the outcome."""
    outcome: str | None = scope["state"].get(_OUTCOME)
    return outcome


_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_ANTHROPIC: Final = "/v1/messages"
_OLLAMA: Final = "/api/"
_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicErrorBody(Struct):
    type: str
    message: str


class AnthropicErrorEnvelope(Struct, tag_field="type", tag="error"):
    """Anthropic's `request_id` is null: the id is in the header x-request-id."""

    error: AnthropicErrorBody
    request_id: None = None


class OllamaErrorEnvelope(Struct):
    error: str


def envelope_type(path: str) -> type[Struct]:
    """The type of the envelope of errors on this path."""
    if path.startswith(_ANTHROPIC):
        return AnthropicErrorEnvelope
    return OllamaErrorEnvelope if path.startswith(_OLLAMA) else OpenAIErrorEnvelope


def envelope(refusal: Refusal, path: str) -> bytes:
    """The JSON text of an error, as the clients of this path know it."""
    if path.startswith(_ANTHROPIC):
        kind = _ANTHROPIC_TYPES.get(refusal.status, "api_error")
        return msgspec.json.encode(
            AnthropicErrorEnvelope(AnthropicErrorBody(kind, refusal.message))
        )
    if path.startswith(_OLLAMA):
        return msgspec.json.encode(OllamaErrorEnvelope(refusal.message))
    kind = _TYPES.get(
        refusal.status, "server_error" if refusal.status >= 500 else "invalid_request_error"
    )
    return msgspec.json.encode(
        OpenAIErrorEnvelope(OpenAIErrorBody(refusal.message, kind, refusal.code, refusal.param))
    )


class ErrorResponse(Response):
    """A refusal. Sending it notes it as the request's end."""

    def __init__(self, refusal: Refusal, path: str, headers: Mapping[str, str]) -> None:
        super().__init__(
            envelope(refusal, path),
            status_code=refusal.status,
            headers=headers,
            media_type="application/json",
        )
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note_refusal(scope, self._refusal)
        await super().__call__(scope, receive, send)


def error_response(refusal: Refusal, path: str = "") -> Response:
    headers = {}
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refusal.retry_after_s is not None:
        headers["retry-after"] = str(refusal.retry_after_s)
    if refusal.lasting or refusal.code in ("worker_crashed", "insufficient_memory"):
        headers["x-should-retry"] = "false"
        headers.pop("retry-after", None)
    return ErrorResponse(refusal, path, headers)


async def on_refusal(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return error_response(error, request.url.path)


async def on_http_exception(request: HttpRequest, error: Exception) -> Response:
    """Answer requests with an unknown path or method, for which Starlette raises exceptions."""
    assert isinstance(error, HTTPException)
    if error.status_code != 405:
        path = request.url.path
        # The paths with a name of something in them would fit too much.
        known = (route.path for route in request.app.routes if "{" not in route.path)
        meant = suggestion(nearest(path, known))
        return error_response(
            Refusal("not_found", f"There is no {path} here; / lists the paths.{meant}"), path
        )
    allow = ", ".join(sorted(_allowed_methods(request) | {"OPTIONS"}))
    if request.method == "OPTIONS":
        return Response(status_code=204, headers={"allow": allow})
    message = f"{request.url.path} doesn't take {request.method}, but {allow}."
    response = error_response(Refusal("method_not_allowed", message), request.url.path)
    response.headers["allow"] = allow
    return response


async def on_defect(request: HttpRequest, _error: Exception) -> Response:
    """Answer after an unexpected exception. The traceback goes to the log, not to the client."""
    return error_response(
        Refusal("internal_error", "The gateway failed on this request; its log has the reason."),
        request.url.path,
    )
