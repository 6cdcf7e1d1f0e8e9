"""The tables of routes, and /openapi.json (OpenAPI 3.1), which describes them all.

A route says its path, its method, its handler, the key that it needs, and the types of its body
and its answer. The application, the check of keys, the metrics and the document read the tables.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from gateway import VERSION
from gateway.access.caller import NeededKey
from gateway.http.wire.bodies import MAX_BODY_BYTES, MOST_DIGITS
from gateway.http.wire.errors import envelope_type, routes_at
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
    "model_output_invalid",
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

    `key` is the key that callers need, if not that of the table. A key that only reads may call the
    route if it `reads`. The route `counts` against the limits of keys if it makes a model work;
    None: a POST does.
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
    key: NeededKey | None = None
    reads: bool = False
    counts: bool | None = None


class Described(Route):
    """A route of a table. An id in the path is written as `{id:id}`."""

    def __init__(
        self,
        path: str,
        endpoint: Handler,
        method: str,
        tag: Tag,
        key: NeededKey,
        operation: Operation,
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method = method
        self.tag = tag
        self.operation = operation
        self.key = operation.key or key
        self.counts = method == "POST" if operation.counts is None else operation.counts


class Routes(list[Described]):
    """The table of a file's routes. A decorator at each handler adds its route. `tag` names the
    group of the routes in /openapi.json, `prefix` begins their paths, and callers need `key`.
    """

    def __init__(self, tag: Tag, prefix: str = "", key: NeededKey = NeededKey.KEY) -> None:
        super().__init__()
        self._tag = tag
        self._prefix = prefix
        self._key = key

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
            whole = self._prefix + path
            self.append(Described(whole, handler, method, self._tag, self._key, operation))
            return handler

        return declare


class Access(NamedTuple):
    """What a caller needs for a request. `path` is that of the route, for the metrics."""

    path: str
    key: NeededKey
    reads: bool
    counts: bool


# The route of all unknown paths: clients can make up any number of them.
NO_ROUTE: Final = "other"
_OPERATORS: Final = ("/admin", "/metrics")


def access_of(routes: Iterable[Described], scope: Scope) -> Access:
    """The access of the route that serves a request; if no route at its path takes its method, of
    the first route at the path. An unknown path needs a key. OPTIONS needs none: the methods of a
    path are no secret, and browsers ask for them without a key.
    """
    method, path = scope["method"], scope["path"]
    key = NeededKey.ADMIN if path.startswith(_OPERATORS) else NeededKey.KEY
    access = None
    for route, match in routes_at(routes, scope):
        whole = match is Match.FULL
        if whole or access is None:
            access = Access(route.path, route.key, whole and route.operation.reads, route.counts)
        if whole:
            break
    access = access or Access(NO_ROUTE, key, reads=False, counts=method == "POST")
    return access._replace(key=NeededKey.NOTHING) if method == "OPTIONS" else access


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


def make_document(routes: Sequence[Described]) -> bytes:
    """The document as JSON text."""
    types = list({kind: None for route in routes for kind in _types(route)})
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    known = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        written = _PARAMETER.sub(r"{\g<name>}", route.path)
        name = re.sub(r"\W+", "_", route.method.lower() + written)
        operation = {"operationId": name, **_operation(route, known)}
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


def _types(route: Described) -> Iterator[Any]:
    operation = route.operation
    yield envelope_type(route.path)
    wanted = (operation.body, operation.answer, operation.events, *operation.others.values())
    for kind in wanted:
        if kind is not None and not isinstance(kind, str):
            yield kind


def _operation(route: Described, known: dict[Any, Any]) -> dict[str, Any]:
    path, operation = route.path, route.operation
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
    by_status: dict[str, list[Code]] = {}
    for code in codes:
        names = by_status.setdefault(str(status_of(code)), [])
        if code not in names:
            names.append(code)
    return by_status


def _of_path(path: str) -> Iterator[dict[str, Any]]:
    for parameter in _PARAMETER.finditer(path):
        yield {
            "name": parameter["name"],
            "in": "path",
            "required": True,
            "description": "Ids of models may have slashes.",
            "schema": {"type": "string", "minLength": 1},
        }


def _of_query(operation: Operation) -> Iterator[dict[str, Any]]:
    for query in operation.query:
        yield {
            "name": query.name,
            "in": "query",
            "required": False,
            "description": query.about,
            "schema": _OF_QUERY[query.kind],
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


@routes.get("/openapi.json", Operation("This document", answer=dict, reads=True))
async def openapi(request: HttpRequest) -> Response:
    document: OpenApiDocument = request.app.state.document
    return Response(await document.text(request), media_type="application/json")
