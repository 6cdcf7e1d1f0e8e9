"""Requests that are passed on as they come: to the server of a model that is a command, or to an
upstream.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final, Protocol, TypeAlias
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.generation.model_call import ModelCall
from gateway.http.generation.pictures import left_out_header, named
from gateway.http.passing.command_clients import CommandClients
from gateway.http.passing.fields import check_query, set_model, unknown
from gateway.http.passing.forms import Form
from gateway.http.passing.forward import Forwarded
from gateway.http.passing.headers import passed_on
from gateway.http.passing.upstream_calls import UpstreamCall
from gateway.http.passing.usage import UsageReader
from gateway.http.wire.access_log import unique
from gateway.http.wire.answer import EVENTS, LINES
from gateway.http.wire.auth import caller_of
from gateway.http.wire.bodies import beside_the_loop, decode_json, read_body, read_json
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import EVENT_STREAM, GENERATES, Operation, Routes
from gateway.models.fleet import Fleet
from gateway.models.roster import LATEST
from gateway.requests import refusals
from gateway.requests.progress import Passage
from gateway.requests.request import Request
from gateway.requests.share import share_of
from gateway.system.http_client import Answer, AnswerError, Question
from gateway.system.refusal import Refusal
from gateway.upstreams.route import via_name
from gateway.upstreams.upstream import REDIRECTS
from protocol.answers import Text

routes = Routes("OpenAI")


class PassedCall(Protocol):
    """A call that passes a request on, to a server that calls the model `told_model`. `fields` are
    those that pass by the configuration, and `adapt` changes the fields of a JSON body.
    """

    http: HttpRequest
    fields: Collection[str]

    @property
    def told_model(self) -> str: ...

    def adapt(self, fields: dict[str, Raw]) -> None: ...

    def forward(
        self, target: bytes, body: bytes | bytearray, form: Form | None = None
    ) -> Forwarded: ...


Handler: TypeAlias = Callable[[HttpRequest], Awaitable[Response]]
# How often a server that can't be reached is asked, and the pauses between.
_TRIES: Final = 75
_AGAIN_S: Final = 0.2
# Steps, also with parameters as Java's servers read them, backslashes, what would be decoded once
# more, and what is no text.
_AMBIGUOUS: Final = re.compile(
    r"(?:^|/)\.{1,2}(?:;[^/]*)?(?:/|$)|//|%[0-9a-f]{2}|[\\\0-\x1f\x7f\ufffd]", re.I
)
# What needs no escape in a path (RFC 3986, 3.3).
_PLAIN: Final = "/!$&'()*+,;=:@"


class _Peeked(Struct):
    """The fields of a JSON body that matter here. Some clients of Ollama send `name`."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None


def passing(handler: Handler) -> Handler:
    """Have a route with a JSON body pass requests on whose model isn't a worker's."""

    @functools.wraps(handler)
    async def handle(http: HttpRequest) -> Response:
        fleet: Fleet = http.app.state.fleet
        if not fleet.roster.has_commands and not fleet.upstreams.by_name:
            return await handler(http)
        body = await read_body(http)
        call = await _call(http, body)
        if call is None:
            return await handler(http)
        return await _pass_json(call, body)

    return handle


def passing_to_bulkheads(*, streams: bool) -> Callable[[Handler], Handler]:
    """Have a route of Ollama's, with a JSON body, pass requests on whose model is that of another
    Bulkhead: only of these it is known that they have the route. `streams`: an answer on this route
    is a stream if the body doesn't say otherwise.
    """

    def decorate(handler: Handler) -> Handler:
        @functools.wraps(handler)
        async def handle(http: HttpRequest) -> Response:
            fleet: Fleet = http.app.state.fleet
            if not fleet.upstreams.by_name:
                return await handler(http)
            body = await read_body(http)
            peeked = await _peeked(body)
            model = (peeked.model or peeked.name or "").removesuffix(LATEST)
            if not model or fleet.roster.has(model):
                return await handler(http)
            found = await fleet.upstreams.ways(model, caller_of(http))
            ways = [each for each in found if each.upstream.of_bulkhead]
            if not ways:
                return await handler(http)
            stream = streams and peeked.stream is not False
            call = UpstreamCall(http, ways, framing=LINES if stream else None)
            return await _pass_json(call, body)

        return handle

    return decorate


async def _call(http: HttpRequest, body: bytearray) -> PassedCall | None:
    """The call that passes the request on. None: it isn't passed on, or can't be read."""
    peeked = await _peeked(body)
    if peeked.model is None:
        return None
    return await _passed(http, peeked.model, stream=bool(peeked.stream))


async def _passed(http: HttpRequest, model: str, *, stream: bool = False) -> PassedCall | None:
    """The call of a model whose requests are passed on; None: it is a worker's, or there is none.
    The models of this gateway go before those of upstreams.
    """
    fleet: Fleet = http.app.state.fleet
    if fleet.roster.has(model):
        command = fleet.roster.is_command(model)
        return _CommandCall(http, model, stream=stream) if command else None
    ways = await fleet.upstreams.ways(model, caller_of(http))
    framing = EVENTS if stream else None
    return UpstreamCall(http, ways, framing=framing) if ways else None


async def _peeked(body: bytearray) -> _Peeked:
    """The fields of a body; a body that is no JSON has none, and its route says why."""
    try:
        return await beside_the_loop(len(body), _peek, body)
    except (msgspec.DecodeError, RecursionError):
        return _Peeked()


def _peek(body: bytearray) -> _Peeked:
    return msgspec.json.decode(body, type=_Peeked)


async def _pass_json(call: PassedCall, body: bytearray) -> Response:
    told, left_out = await beside_the_loop(len(body), _told, call, body)
    # A server that takes forms too might find other fields in the same text.
    scope = call.http.scope
    kept = [each for each in scope["headers"] if each[0] != b"content-type"]
    scope["headers"] = [*kept, (b"content-type", b"application/json")]
    forwarded = call.forward(_own_target(call.http), told)
    forwarded.own_headers = left_out_header({named(each, "field") for each in left_out})
    return forwarded


def _told(call: PassedCall, body: bytearray) -> tuple[bytes, set[str]]:
    """The body that the server gets, without any field twice, and the fields that it doesn't get.

    Raises:
        Refusal: the body is no JSON object, or asks for what doesn't pass.
    """
    fields = decode_json(body, dict[str, Raw], share_of(call.http.scope))
    set_model(fields, call.told_model)
    left_out = set() if caller_of(call.http).admin else unknown(fields, call.fields)
    for each in left_out:
        del fields[each]
    call.adapt(fields)
    return msgspec.json.encode(fields), left_out


def _target(path: str, query: bytes) -> bytes:
    """The path and the query for the server. `path` is the one that was checked: the client may
    have written it in a way that means something else there.

    Raises:
        Refusal: servers disagree about the path.
    """
    if _AMBIGUOUS.search(path):
        raise invalid(
            f"The path {path[:200]!r} is ambiguous: send one without backslashes, bytes that are "
            "encoded twice, and steps such as '..'.",
            "path",
        )
    target = quote(path, safe=_PLAIN).encode()
    return target + b"?" + query if query else target


def _own_target(http: HttpRequest) -> bytes:
    """The same for a path of this gateway. Raises: Refusal: the query names a model."""
    query: bytes = http.scope["query_string"]
    check_query(query, operator=caller_of(http).admin)
    return _target(http.scope["path"], query)


class _CommandCall(ModelCall):
    """A call of a model that is a command."""

    def __init__(self, http: HttpRequest, asked: str, *, stream: bool = False) -> None:
        """Raises: Refusal: the caller may not use the model, or it is no command."""
        super().__init__(http, asked, passes=True)
        self._stream = stream
        self.fields: Collection[str] = self.model.settings.fields

    @property
    def told_model(self) -> str:
        """The model's name at the server."""
        return self.model.settings.name or self.model.id

    def adapt(self, fields: dict[str, Raw]) -> None:
        pass

    def forward(
        self, target: bytes, body: bytes | bytearray, form: Form | None = None
    ) -> Forwarded:
        """Put the request into the model's queue, to be passed on in its turn.

        Raises:
            Refusal: the queue is full, or the limits of the key don't allow the request now.
        """
        terms = self.terms(None, None, {})
        request = Request(Passage(unique(terms.id)), terms, self.fleet.now())
        self.count([request])
        self.fleet.submit(self.compartment, request)
        usage = UsageReader(len(body))
        silence_s = self.model.settings.silence_s
        return Forwarded(
            self._opened(request, target, body, form, usage),
            f"The server of {self.model.id!r}",
            usage,
            silence_s=silence_s,
            framing=EVENTS if self._stream else None,
        )

    @asynccontextmanager
    async def _opened(
        self,
        request: Request,
        target: bytes,
        body: bytes | bytearray,
        form: Form | None,
        usage: UsageReader,
    ) -> AsyncGenerator[Answer]:
        try:
            tries = 0
            while True:
                place = await _turn(request)
                tries += 1
                try:
                    answer = await self._ask(place, target, body, form)
                    break
                except AnswerError as error:
                    # Its server has just ended, and the guard is about to say so: wait for the next
                    # one, as nothing was sent.
                    if error.sent or tries >= _TRIES:
                        raise
                self.compartment.traffic.passed(request, None)
                await asyncio.sleep(_AGAIN_S)
                request = Request(request.task, request.terms, request.arrived_at)
                self.fleet.submit(self.compartment, request)
            try:
                yield answer
            finally:
                answer.close()
        finally:
            self.compartment.traffic.passed(request, usage.usage)

    async def _ask(
        self, place: str, target: bytes, body: bytes | bytearray, form: Form | None
    ) -> Answer:
        """Raises: AnswerError."""
        clients: CommandClients = self.http.app.state.command_clients
        client = clients.at(self.model.id, place)
        bearer = b"Bearer " + client.key.encode()
        told = self.told_model
        via = via_name(self.fleet.upstreams.instance)
        passed = passed_on(self.http.scope["headers"], via, operator=self.caller.admin)
        question = Question(
            self.http.method.encode(),
            target,
            [*passed, (b"authorization", bearer)],
            body if form is None else form.body(told),
            0 if form is None else form.length(told),
        )
        answer = await client.http.ask(question, self.model.settings.silence_s)
        if answer.status in REDIRECTS:
            # A client would send its request, with its key, to where this leads.
            answer.close()
            raise Refusal(
                "bad_gateway",
                f"The server of {self.model.id!r} redirects to another address (it answered with "
                f"{answer.status}): send the request to the path that it means.",
            )
        return answer


async def _turn(request: Request) -> str:
    """Wait until the request may be passed on. Returns the server's place."""
    while True:
        for part in (await request.take()).parts:
            if isinstance(part, Text):
                return part.text


class SpeechBody(Struct):
    """The fields that matter here; the server gets all of them."""

    model: str
    stream: bool | None = None


async def _json_only(http: HttpRequest) -> Response:
    """A path on which only models answer whose requests are passed on."""
    body = await read_body(http)
    call = await _call(http, body)
    if call is not None:
        return await _pass_json(call, body)
    asked = await read_json(http, SpeechBody)
    raise refusals.passes_nothing(ModelCall(http, asked.model, passes=None).model.id)


@routes.post(
    "/v1/audio/speech",
    Operation("Speak a text", body=SpeechBody, stream=EVENT_STREAM, refusals=GENERATES),
)
async def create_speech(http: HttpRequest) -> Response:
    return await _json_only(http)


@routes.post(
    "/v1/images/generations",
    Operation("Make pictures", body=SpeechBody, stream=EVENT_STREAM, refusals=GENERATES),
)
async def create_image(http: HttpRequest) -> Response:
    return await _json_only(http)


async def _pass_form(http: HttpRequest) -> Response:
    """Pass a form on, whose field `model` names a model whose requests are passed on."""
    target = _own_target(http)
    form = Form(http, http.app.state.form_files)
    model = await form.model()
    call = await _passed(http, model) or _CommandCall(http, model)
    names = await form.read()
    if not caller_of(http).admin and (others := unknown(names, call.fields)):
        raise invalid(
            f"The field {min(others)} isn't passed on: leave it out, or have the operator name it "
            "in `fields` of the model.",
            min(others),
        )
    return call.forward(target, b"", form)


for _path, _summary in (
    ("/v1/audio/transcriptions", "Write down what is said"),
    ("/v1/audio/translations", "Write down in English what is said"),
    ("/v1/images/edits", "Change pictures"),
):
    # The metrics know a route by its endpoint.
    routes.post(_path, Operation(_summary, stream=EVENT_STREAM, refusals=GENERATES))(
        functools.partial(_pass_form)
    )


_PREFIX: Final = "/servers/"


async def ask_server(http: HttpRequest) -> Response:
    """Ask a command's server on a path of its own."""
    fleet: Fleet = http.app.state.fleet
    path: str = http.scope["path"][len(_PREFIX) :]
    model = next(
        (
            each
            for each in sorted(fleet.roster.configured, key=len, reverse=True)
            if path.startswith(f"{each}/")
        ),
        path.partition("/")[0],
    )
    call = _CommandCall(http, model)
    rest = path[len(model) :]
    if not any(
        rest == each or rest.startswith(each.rstrip("/") + "/")
        for each in call.model.settings.paths
    ):
        raise Refusal(
            "not_found",
            f"{rest or '/'} of {model!r} isn't passed on: its key paths names the paths that are.",
        )
    body = await read_body(http)
    return call.forward(_target(rest, http.scope["query_string"]), body)


_OWN: Final = Operation(
    "Ask a command's server on a path of its own",
    stream=EVENT_STREAM,
    refusals=(*GENERATES, "not_found"),
)
for _declare in (routes.get, routes.post, routes.delete):
    _declare("/servers/{path:path}", _OWN)(ask_server)
