"""/openapi.json (OpenAPI 3.1): the description of all routes, made from their types."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from gateway import VERSION
from gateway.http.wire.bodies import MAX_BODY_BYTES, MOST_DIGITS
from gateway.http.wire.errors import envelope_type
from gateway.system.lane import Lane
from gateway.system.refusal import Code, status_of


class IdConvertor(PathConvertor):
    """Matches an id in a path. An id may have slashes, but is not empty. A path with a slash at its
    end is redirected, as on all routes.
    """

    regex = ".+"


register_url_convertor("id", IdConvertor())

EVENT_STREAM: Final = "text/event-stream"
LINE_STREAM: Final = "application/x-ndjson"

Handler: TypeAlias = Callable[[HttpRequest], Awaitable[Response]]
Tag: TypeAlias = Literal["OpenAI", "Anthropic", "Ollama", "probes", "operation"]

# The refusals that every request may get.
ALWAYS: Final[tuple[Code, ...]] = (
    "invalid_request_error",
    "invalid_api_key",
    "permission_denied",
    "request_timeout",
    "headers_too_large",
    "internal_error",
    "overloaded",
)
# The further refusals of requests that a model answers.
GENERATES: Final[tuple[Code, ...]] = (
    "context_length_exceeded",
    "model_not_found",
    "queue_full",
    "worker_crashed",
    "model_unavailable",
    "load_timeout",
    "shutting_down",
    "deadline_exceeded",
    "insufficient_memory",
)
NAMES_MODEL: Final[tuple[Code, ...]] = ("model_not_found",)
LOADS: Final[tuple[Code, ...]] = (
    "model_not_found",
    "model_unavailable",
    "load_timeout",
    "shutting_down",
    "insufficient_memory",
)


class Query(Struct, frozen=True):
    """A parameter of the query string."""

    name: str
    kind: Literal["string", "integer"]
    about: str


class Operation(Struct, frozen=True):
    """The description of a route. `body` is the type that decodes the body. `answer` is the type of
    the answer, or the media type of a text. `events` is the type of an event in a stream of the
    media type `stream`. `refusals` are the codes of possible refusals besides `ALWAYS`; `others`
    maps further statuses to the types of their answers.
    """

    summary: str
    body: Any = None
    body_optional: bool = False
    answer: Any = None
    events: Any = None
    stream: str | None = None
    query: Sequence[Query] = ()
    refusals: tuple[Code, ...] = ()
    others: Mapping[int, Any] = {}


class Described(Route):
    """A route that /openapi.json describes. An id in the path is written as `{id:id}`."""

    def __init__(
        self, path: str, endpoint: Handler, method: str, tag: Tag, operation: Operation
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method = method
        self.tag = tag
        self.operation = operation


class Routes(list[BaseRoute]):
    """The routes of a file. A decorator at each handler declares its route. `tag` names the group
    of the routes in /openapi.json.
    """

    def __init__(self, tag: Tag) -> None:
        super().__init__()
        self._tag = tag

    def get(self, path: str, operation: Operation) -> Callable[[Handler], Handler]:
        return self._declare("GET", path, operation)

    def post(self, path: str, operation: Operation) -> Callable[[Handler], Handler]:
        return self._declare("POST", path, operation)

    def delete(self, path: str, operation: Operation) -> Callable[[Handler], Handler]:
        return self._declare("DELETE", path, operation)

    def _declare(
        self, method: str, path: str, operation: Operation
    ) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            self.append(Described(path, handler, method, self._tag, operation))
            return handler

        return declare


_REFERENCE: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{(?P<name>\w+)(?::\w+)?\}")
_WITH_BODY: Final[tuple[Code, ...]] = ("request_too_large",)
_TEXT: Final = {"type": "string"}
# The schemas of query parameters. `read_count` takes just these integers.
_OF_QUERY: Final = {
    "string": _TEXT,
    "integer": {"type": "integer", "minimum": 0, "maximum": 10**MOST_DIGITS - 1},
}
# The schema of an event, as in OpenAPI 3.2. Current tools recognize events by the media type.
_STREAMED: Final[dict[str, dict[str, Any]]] = {
    EVENT_STREAM: {
        "type": "object",
        "properties": {"id": _TEXT, "event": _TEXT, "data": _TEXT},
    }
}
_REQUEST_ID: Final = {
    "x-request-id": {
        "description": "The request's id, in the log too.",
        "schema": {"type": "string"},
    }
}


def described(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[tuple[str, BaseRoute]]:
    """All routes, also the routes within mounts, each with its whole path."""
    for route in routes:
        path = prefix + getattr(route, "path", "")
        if isinstance(route, Mount) and route.routes:
            yield from described(route.routes, path)
        else:
            yield path, route


def make_document(routes: Iterable[BaseRoute]) -> bytes:
    """The document as JSON text."""
    found = [(path, each) for path, each in described(routes) if isinstance(each, Described)]
    types = list({each: None for path, route in found for each in _types(path, route.operation)})
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    known = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for path, route in found:
        written = _PARAMETER.sub(r"{\g<name>}", path)
        name = re.sub(r"\W+", "_", route.method.lower() + written)
        operation = {"operationId": name, **_operation(path, route, known)}
        paths.setdefault(written, {})[route.method.lower()] = operation
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Bulkhead",
                "version": VERSION,
                "description": "A model server: OpenAI's API, Anthropic's, Ollama's, and its own.",
                "license": {"name": "MIT", "identifier": "MIT"},
            },
            "servers": [{"url": "/"}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
            },
            # As long as the gateway has no API keys, no key is needed.
            "security": [{}, {"bearer": []}, {"header": []}],
        }
    )


def _types(path: str, operation: Operation) -> Iterator[Any]:
    yield envelope_type(path)
    wanted = (operation.body, operation.answer, operation.events, *operation.others.values())
    for each in wanted:
        if each is not None and not isinstance(each, str):
            yield each


def _operation(path: str, route: Described, known: dict[Any, Any]) -> dict[str, Any]:
    operation = route.operation
    responses: dict[str, Any] = {}
    answer = _content(operation.answer, known)
    if operation.stream is not None:
        answer[operation.stream] = _stream(operation, known)
    if answer:
        responses["200"] = {"description": "Done.", "headers": _REQUEST_ID, "content": answer}
    for other, kind in operation.others.items():
        content = _content(kind, known)
        responses[str(other)] = {"description": "Done, or the present state.", "content": content}
    codes = (*ALWAYS, *operation.refusals, *(_WITH_BODY if operation.body else ()))
    for status, names in _by_status(codes).items():
        error = known[envelope_type(path)]
        same = responses.setdefault(status, {"description": "", "content": {}})
        same["description"] = f"{same['description']} {', '.join(names)}.".strip()
        same["headers"] = _REQUEST_ID
        if before := same["content"].get("application/json"):
            error = {"anyOf": [before["schema"], error]}
        same["content"]["application/json"] = {"schema": error}
    written: dict[str, Any] = {
        "summary": operation.summary,
        "tags": [route.tag],
        "parameters": [*_of_path(path), *_of_query(operation)],
        "responses": dict(sorted(responses.items())),
    }
    if operation.body is not None:
        written["requestBody"] = {
            "required": not operation.body_optional,
            "description": f"{MAX_BODY_BYTES >> 20} MiB at most. Unknown fields are ignored.",
            "content": {"application/json": {"schema": known[operation.body]}},
        }
    return written


def _content(kind: Any, known: dict[Any, Any]) -> dict[str, Any]:
    if kind is None:
        return {}
    if isinstance(kind, str):
        return {kind: {"schema": _STREAMED.get(kind, {"type": "string"})}}
    return {"application/json": {"schema": known[kind]}}


def _stream(operation: Operation, known: dict[Any, Any]) -> dict[str, Any]:
    """The schema of a stream. OpenAPI 3.1 has no keyword for its events: they are in `x-each`."""
    schema = dict(_STREAMED.get(operation.stream or "", {"type": "string"}))
    if operation.events is not None:
        schema["x-each"] = known[operation.events]
    return {"schema": schema}


def _by_status(codes: Iterable[Code]) -> dict[str, list[Code]]:
    found: dict[str, list[Code]] = {}
    for code in codes:
        names = found.setdefault(str(status_of(code)), [])
        if code not in names:
            names.append(code)
    return found


def _of_path(path: str) -> Iterator[dict[str, Any]]:
    for found in _PARAMETER.finditer(path):
        yield {
            "name": found["name"],
            "in": "path",
            "required": True,
            "description": "Ids of models may have slashes.",
            "schema": {"type": "string", "minLength": 1},
        }


def _of_query(operation: Operation) -> Iterator[dict[str, Any]]:
    for each in operation.query:
        yield {
            "name": each.name,
            "in": "query",
            "required": False,
            "description": each.about,
            "schema": _OF_QUERY[each.kind],
        }


# Seconds to make the document, which takes milliseconds on an idle machine.
_MADE_S: Final = 60.0


class OpenApiDocument:
    """Makes the document in a thread, when it is first requested, and keeps its text."""

    def __init__(self) -> None:
        self._lane = Lane("openapi")
        self._text: bytes | None = None

    async def text(self, request: HttpRequest) -> bytes:
        if self._text is None:
            make = partial(make_document, request.app.routes)
            self._text = await self._lane.run(make, _MADE_S, "/openapi.json")
        return self._text


routes = Routes("probes")


@routes.get("/openapi.json", Operation("This document", answer=dict))
async def openapi(request: HttpRequest) -> Response:
    document: OpenApiDocument = request.app.state.document
    return Response(await document.text(request), media_type="application/json")
