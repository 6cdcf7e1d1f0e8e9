"""What is said of a route, beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from starlette.convertors import register_url_convertor
from starlette.routing import Route

from gateway.http.openapi.ids import IdConvertor
from gateway.system.refusal import Code

register_url_convertor("id", IdConvertor())

EVENT_STREAM: Final = "text/event-stream"
LINE_STREAM: Final = "application/x-ndjson"

Tag: TypeAlias = Literal["OpenAI", "Anthropic", "Ollama", "probes", "operation"]

# What may happen to every request, whatever it asks for.
ALWAYS: Final[tuple[Code, ...]] = (
    "invalid_request_error",
    "invalid_api_key",
    "permission_denied",
    "request_timeout",
    "headers_too_large",
    "internal_error",
    "overloaded",
)
# What may happen to one that has a model generate, beside that.
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


class Operation(Struct, frozen=True, kw_only=True):
    """`body` is the type that decodes it, and `answer` the one that is encoded, or the media type
    of a text. `events` is the type of what a stream of the media type `stream` brings. `refusals`
    come beside those that are `ALWAYS` possible; `others` are further statuses with their answers.
    """

    summary: str
    tag: Tag
    body: Any = None
    body_optional: bool = False
    answer: Any = None
    events: Any = None
    stream: str | None = None
    query: Sequence[Query] = ()
    refusals: tuple[Code, ...] = ()
    others: Mapping[int, Any] = {}


class Described(Route):
    """A route that /openapi.json has. An id in its path is an `{id:id}`."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        operation: Operation,
        *,
        method: str = "GET",
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method = method
        self.operation = operation
