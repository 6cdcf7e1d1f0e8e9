"""Passes requests on to other servers: of models that are commands, and of upstreams.

1. Peek at the model in the body, once, and find its server: that of a command of this gateway, else
   an upstream's. The gateway answers requests for all other models itself.
2. Check the path and the query (`outbound.py`): they lead to no other model.
3. Write the body for the server (`fields.py`, `forms.py`): it has the model's name there, and no
   field that the caller may not send.
4. Count the answer against the limits of the caller's key, and join the queue of a command.
5. Ask the server when its turn comes (`command_calls.py`, `upstream_calls.py`): again, or another
   one, if that fails before it has begun to answer.
6. Write its answer to the client as it comes (`foreign_answer.py`), and count the usage in it
   (`usage.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

import msgspec
from msgspec import Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.generation.pictures import left_out_header, named
from gateway.http.passing.command_calls import CommandCall
from gateway.http.passing.fields import check_query, set_model, unknown
from gateway.http.passing.foreign_answer import ForeignAnswer, RelayResponse
from gateway.http.passing.forms import Form
from gateway.http.passing.outbound import OutboundRequest
from gateway.http.passing.upstream_calls import UpstreamCall
from gateway.http.passing.usage import OllamaUsageReader, UsageReader
from gateway.http.wire.answer import EVENTS, LINES, Framing
from gateway.http.wire.auth import caller_of
from gateway.http.wire.bodies import beside_the_loop, decode_json, read_body
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import Handler
from gateway.models.fleet import Fleet
from gateway.models.roster import LATEST
from gateway.requests.share import share_of


class ServerCall(Protocol):
    """A call of a model of another server, which calls it `model_name`. `fields` pass by the
    configuration, besides those that always do. `server` names the server in a sentence.
    """

    http: HttpRequest
    fields: Collection[str]
    framing: Framing | None
    hides_usage: bool

    @property
    def model_name(self) -> str: ...

    @property
    def server(self) -> str: ...

    @property
    def silence_s(self) -> float: ...

    def adapt(self, fields: dict[str, Raw]) -> None:
        """Change the fields of a JSON body. Raises: Refusal: the server can't do what they ask."""

    def admit(self, usage: UsageReader) -> None:
        """Raises: Refusal: the request can't be passed on now, or the key's limits forbid it."""

    def open_answer(
        self, outbound: OutboundRequest, usage: UsageReader
    ) -> AbstractAsyncContextManager[ForeignAnswer]:
        """Call `admit` first. Raises: AnswerError, Refusal: there is no answer."""


class _Peeked(Struct):
    """The fields of a JSON body that matter here. Some clients of Ollama send `name`."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None


_Finder: TypeAlias = Callable[[HttpRequest, _Peeked], Awaitable[ServerCall | None]]


def passing(handler: Handler) -> Handler:
    """Have a route with a JSON body pass requests on whose model isn't a worker's."""

    async def find(http: HttpRequest, body: _Peeked) -> ServerCall | None:
        if body.model is None:
            return None
        return await find_call(http, body.model, EVENTS if body.stream else None)

    return _passing(handler, find)


def passing_to_bulkheads(*, streams: bool) -> Callable[[Handler], Handler]:
    """Have a route of Ollama's, with a JSON body, pass requests on whose model is that of another
    Bulkhead: only of these it is known that they have the route. `streams`: an answer on this route
    is a stream if the body doesn't say otherwise.
    """

    async def find(http: HttpRequest, body: _Peeked) -> ServerCall | None:
        fleet: Fleet = http.app.state.fleet
        model = (body.model or body.name or "").removesuffix(LATEST)
        if not model or fleet.roster.has(model):
            return None
        ways = await fleet.upstreams.ways(model, caller_of(http))
        ways = [way for way in ways if way.upstream.of_bulkhead]
        framing = LINES if streams and body.stream is not False else None
        return UpstreamCall(http, ways, framing) if ways else None

    return lambda handler: _passing(handler, find)


def _passing(handler: Handler, find: _Finder) -> Handler:
    @functools.wraps(handler)
    async def handle(http: HttpRequest) -> Response:
        fleet: Fleet = http.app.state.fleet
        if not fleet.roster.has_commands and not fleet.upstreams.by_name:
            return await handler(http)
        body = await read_body(http)
        try:
            peeked = await beside_the_loop(len(body), _peek, body)
        except (msgspec.DecodeError, RecursionError):
            peeked = _Peeked()  # The handler says what is wrong with the body.
        call = await find(http, peeked)
        return await handler(http) if call is None else await _pass_json(call, body)

    return handle


def _peek(body: bytearray) -> _Peeked:
    return msgspec.json.decode(body, type=_Peeked)


async def find_call(
    http: HttpRequest, model: str, framing: Framing | None = None
) -> ServerCall | None:
    """The call of a model of another server; None: a worker has the model, or there is none. The
    models of this gateway go before those of upstreams. `framing` is that of the stream that the
    client wants.
    """
    fleet: Fleet = http.app.state.fleet
    if fleet.roster.has(model):
        command = fleet.roster.is_command(model)
        return CommandCall(http, model, framing) if command else None
    ways = await fleet.upstreams.ways(model, caller_of(http))
    return UpstreamCall(http, ways, framing) if ways else None


async def _pass_json(call: ServerCall, body: bytearray) -> Response:
    target = _checked_target(call.http)
    encoded, left_out = await beside_the_loop(len(body), _body_for_server, call, body)
    # A server that takes forms too might find other fields in the same text.
    scope = call.http.scope
    headers = [header for header in scope["headers"] if header[0] != b"content-type"]
    scope["headers"] = [*headers, (b"content-type", b"application/json")]
    response = pass_on(call, OutboundRequest(call.http, *target, encoded))
    response.further_headers = left_out_header({named(field, "field") for field in left_out})
    return response


def _body_for_server(call: ServerCall, body: bytearray) -> tuple[bytes, set[str]]:
    """The body that the server gets, without any field twice, and the fields that it doesn't get.

    Raises:
        Refusal: the body is no JSON object, or asks for what doesn't pass.
    """
    fields = decode_json(body, dict[str, Raw], share_of(call.http.scope))
    set_model(fields, call.model_name)
    left_out = set() if caller_of(call.http).admin else unknown(fields, call.fields)
    for field in left_out:
        del fields[field]
    call.adapt(fields)
    return msgspec.json.encode(fields), left_out


async def pass_form(http: HttpRequest) -> Response:
    """Pass a form on. Its field `model` names the model, which a worker can't have."""
    target = _checked_target(http)
    form = Form(http, http.app.state.form_files)
    model = await form.model()
    call = await find_call(http, model) or CommandCall(http, model)
    names = await form.read()
    if not caller_of(http).admin and (others := unknown(names, call.fields)):
        raise invalid(
            f"The field {min(others)} isn't passed on: leave it out, or have the operator name it "
            "in `fields` of the model.",
            min(others),
        )
    return pass_on(call, OutboundRequest(http, *target, form=form))


def _checked_target(http: HttpRequest) -> tuple[str, bytes]:
    """The path and the query. Raises: Refusal: the query names a model."""
    query: bytes = http.scope["query_string"]
    check_query(query, operator=caller_of(http).admin)
    return http.scope["path"], query


def pass_on(call: ServerCall, outbound: OutboundRequest) -> RelayResponse:
    """The response that asks the server, and writes its answer.

    Raises:
        Refusal: the request can't be passed on now, or the limits of the key don't allow it.
    """
    ollama = outbound.target.startswith(b"/api/")
    usage = OllamaUsageReader() if ollama else UsageReader(len(outbound.body))
    call.admit(usage)
    return RelayResponse(
        call.open_answer(outbound, usage),
        call.server,
        usage,
        silence_s=call.silence_s,
        framing=call.framing,
        hides_usage=call.hides_usage,
    )
