"""Requests to models of upstreams: they are passed on to one of them, and to another one if that
fails before it has begun to answer.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from msgspec import Raw
from starlette.requests import Request as HttpRequest

from gateway.http.passing.forms import Form
from gateway.http.passing.forward import Forwarded, Opened, refusal_of
from gateway.http.passing.headers import passed_on
from gateway.http.passing.usage import OllamaUsageReader, UsageReader
from gateway.http.wire.access_log import REQUEST_ID, record_of
from gateway.http.wire.answer import EVENTS, Framing, framing_of
from gateway.http.wire.auth import caller_of, take_places
from gateway.http.wire.errors import invalid
from gateway.models.fleet import Fleet
from gateway.system.http_client import Answer, AnswerError, Headers, Question, Sink
from gateway.system.refusal import Refusal
from gateway.upstreams.route import via_name
from gateway.upstreams.upstream import REDIRECTS, Upstream
from gateway.upstreams.upstreams import Way, in_order
from protocol.answers import Usage

# A server that answers so may do better later, and another one now.
_ELSEWHERE: Final = (429, 502, 503)
_TELLS_IF_ASKED: Final = ("/v1/chat/completions", "/v1/completions")
_RESPONSES: Final = "/v1/responses"
# Fields of the Responses API that lead to what a server has stored.
_OF_STORED: Final = ("background", "previous_response_id", "conversation")
_LOCKED: Final = (401, 403)
_FAILED: Final = b"event: error"
# Comments and empty lines at the beginning of a stream.
_NOTHING: Final = re.compile(rb"\A(?::[^\r\n]*\r?\n|\r?\n)*")
# A stream whose beginning is longer has begun.
_MOST_WAITING_BYTES: Final = 64 << 10
_LONGEST_PATIENCE_S: Final = 60.0
_FULL: Final = "it runs as many requests from here as its max_concurrency allows"


class UpstreamCall:
    """A call of a model on the ways that lead to it."""

    def __init__(
        self,
        http: HttpRequest,
        ways: Sequence[Way],
        *,
        framing: Framing | None = None,
    ) -> None:
        """`framing` is that of the stream that the client wants, if it wants one.

        Raises: Refusal: the request asks for what only this gateway's own models have."""
        if "x-mailbox" in http.headers:
            raise invalid("X-Mailbox: answers of upstreams can't be kept.", "X-Mailbox")
        self.http = http
        self._ways = list(ways)
        self._framing = framing
        self._hides_usage = False
        self.fields: Collection[str] = set.intersection(
            *({*each.upstream.settings.fields} for each in ways)
        )

    @property
    def told_model(self) -> str:
        """The model's name at the upstreams."""
        return self._ways[0].name_there

    def adapt(self, fields: dict[str, Raw]) -> None:
        """Raises: Refusal: the request asks for a response that the upstream stores."""
        if self.http.url.path.startswith(_RESPONSES):
            _store_nothing(fields)
        caller = caller_of(self.http)
        if not caller.admin:
            # The order of others' requests, and how long their models stay loaded, is nothing that
            # every caller may change.
            for each in ("priority", "keep_alive"):
                fields.pop(each, None)
        if caller.name is not None and self._framing is EVENTS:
            self._ask_for_usage(fields)

    def _ask_for_usage(self, fields: dict[str, Raw]) -> None:
        """Have a stream of OpenAI's tell its usage, which counts for the client's key."""
        if self.http.url.path not in _TELLS_IF_ASKED:
            return
        try:
            options = msgspec.json.decode(
                fields.get("stream_options", b"null"), type=dict[str, Raw] | None
            )
        except msgspec.DecodeError:
            return  # The upstream will say what is wrong with it.
        options = options or {}
        if bytes(options.get("include_usage", b"")).strip() != b"true":
            options["include_usage"] = Raw(b"true")
            fields["stream_options"] = Raw(msgspec.json.encode(options))
            self._hides_usage = True

    def forward(
        self, target: bytes, body: bytes | bytearray, form: Form | None = None
    ) -> Forwarded:
        """Pass the request on, whose path and query are in `target`.

        Raises:
            Refusal: the gateway takes no requests, or the limits of the key don't allow this one.
        """
        fleet: Fleet = self.http.app.state.fleet
        fleet.check_serves()
        first = self._ways[0]
        bare = len({each.upstream.name for each in self._ways}) > 1
        if first.offer is not None:
            # Other names are the client's, who may make up any number of them.
            record_of(self.http.scope).model = first.name_there if bare else first.id
        ollama = target.startswith(b"/api/")
        usage = OllamaUsageReader() if ollama else UsageReader(len(body))
        take_places(self.http, [_Spent(usage)])
        return Forwarded(
            self._opened(target, body, form),
            "The upstream",
            usage,
            silence_s=max(each.upstream.settings.silence_s for each in self._ways),
            framing=self._framing,
            hides_usage=self._hides_usage,
        )

    @asynccontextmanager
    async def _opened(
        self, target: bytes, body: bytes | bytearray, form: Form | None
    ) -> AsyncGenerator[Opened]:
        left = [each for each in in_order(self._ways) if not each.upstream.full]
        refusal = None if left else self._unavailable()
        while left:
            way = left.pop(0)
            with way.upstream.asking(way.name_there) as began:
                try:
                    answer = await self._ask(way, target, body, form)
                except AnswerError as error:
                    way.upstream.failed(error)
                    refusal = _refusal_of(error, way.upstream)
                    if error.sent and (error.late or form is not None):
                        break
                    continue
                try:
                    begun = await self._begun(way, answer, last=not left or form is not None)
                    if begun is None:
                        continue
                    way.upstream.served(began)
                    yield begun
                    return
                except AnswerError as error:
                    way.upstream.failed(error)
                    refusal = _refusal_of(error, way.upstream)
                    if error.late or form is not None:
                        break
                finally:
                    answer.close()
        assert refusal is not None
        raise refusal

    async def _ask(
        self, way: Way, target: bytes, body: bytes | bytearray, form: Form | None
    ) -> Answer:
        """Raises: AnswerError."""
        question = Question(
            self.http.method.encode(),
            way.upstream.target(target),
            self._headers(way.upstream),
            body if form is None else form.body(way.name_there),
            0 if form is None else form.length(way.name_there),
        )
        return await way.upstream.client.ask(question, way.upstream.settings.silence_s)

    def _headers(self, upstream: Upstream) -> Headers:
        fleet: Fleet = self.http.app.state.fleet
        instance = via_name(fleet.upstreams.instance)
        operator = caller_of(self.http).admin
        passed = passed_on(self.http.scope["headers"], instance, operator=operator)
        kept = [each for each in passed if each[0] != REQUEST_ID]
        request_id = record_of(self.http.scope).id.encode()
        return [*kept, (REQUEST_ID, request_id), *upstream.secrets()]

    async def _begun(self, way: Way, answer: Answer, *, last: bool) -> Opened | None:
        """The answer once it has begun: a stream that only tells that time passes hasn't. None: the
        upstream refuses the request for now; a `last` one is asked no more, so its refusal counts.

        Raises:
            AnswerError: there is no answer.
            Refusal: the upstream doesn't let this gateway in, or sends it away.
        """
        upstream = way.upstream
        if answer.status in _LOCKED:
            if not last:
                return None
            raise Refusal(
                "bad_gateway",
                f"The upstream {upstream.name!r} doesn't let this gateway in (it answered with "
                f"{answer.status}): its operator has to look at the key.",
                lasting=True,
            )
        if answer.status in REDIRECTS:
            # The client's request, with its key, is nothing that another server is to get.
            if not last:
                return None
            raise Refusal(
                "bad_gateway",
                f"The upstream {upstream.name!r} redirects to another address (it answered with "
                f"{answer.status}): its url has to be corrected.",
                lasting=True,
            )
        if answer.status in _ELSEWHERE:
            upstream.be_patient(way.name_there, _retry_after_s(answer.headers))
            if not last:
                return None
        first = b""
        if framing_of(answer.headers) is EVENTS:
            first = await _first_event(answer, upstream.settings.silence_s)
            if first.startswith(_FAILED) and not last:
                return None
        return _Begun(upstream, answer, first)

    def _unavailable(self) -> Refusal:
        """Why no upstream can be asked."""
        each = min(self._ways, key=lambda way: way.upstream.wait_s()).upstream
        reasons = ((way.upstream.name, way.upstream.trouble() or _FULL) for way in self._ways)
        told = "; ".join(f"{name}: {reason}" for name, reason in reasons)
        return Refusal(
            "model_unavailable",
            f"{self.told_model!r} can't be had from any upstream now ({told}).",
            retry_after_s=max(1, math.ceil(each.wait_s())),
        )


def _store_nothing(fields: dict[str, Raw]) -> None:
    """Have the upstream store no response: all clients are one caller there, so each could read the
    responses of the others.

    Raises: Refusal: the request needs one that is stored.
    """
    for name in _OF_STORED:
        if bytes(fields.get(name, b"null")).strip() not in (b"null", b"false"):
            raise invalid(
                f"{name}: responses of an upstream's models aren't stored, so they can be neither "
                "fetched nor continued: send the whole conversation as input.",
                name,
            )
    fields["store"] = Raw(b"false")


def _refusal_of(error: AnswerError, upstream: Upstream) -> Refusal:
    return refusal_of(error, f"The upstream {upstream.name!r}")


def _retry_after_s(headers: Headers) -> float | None:
    text = dict(headers).get(b"retry-after", b"")
    return min(_LONGEST_PATIENCE_S, float(text)) if text.isdigit() and len(text) < 10 else None


async def _first_event(answer: Answer, silence_s: float) -> bytes:
    """Read until a stream's first event has begun. Returns what came of it, without the comments
    before.

    Raises:
        AnswerError: the stream broke off before, or had no event for `silence_s`.
    """
    text = b""
    loop = asyncio.get_running_loop()
    over_at = loop.time() + silence_s
    while piece := await answer.read(silence_s):
        if loop.time() > over_at:
            raise AnswerError(f"completed no event for {silence_s:g} s", late=True)
        text = _NOTHING.sub(b"", text + piece, count=1)
        if len(text) > _MOST_WAITING_BYTES or (
            not text.startswith(b":") and len(text) >= len(_FAILED)
        ):
            break
    return text


class _Begun:
    """An answer whose body begins with `first`. Its failures name the upstream, and count there."""

    def __init__(self, upstream: Upstream, answer: Answer, first: bytes) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.framed = answer.framed
        self._upstream = upstream
        self._answer = answer
        self._first = first

    async def read(self, silence_s: float, sink: Sink | None = None) -> bytes:
        """Raises: Refusal: the rest doesn't come."""
        if self._first:
            first, self._first = self._first, b""
            return first
        try:
            return await self._answer.read(self._upstream.settings.silence_s, sink)
        except AnswerError as error:
            self._upstream.failed(error)
            raise _refusal_of(error, self._upstream) from error


class _Spent:
    """What an answer that passes has used, for the limits of a key."""

    prompt_counts = True

    def __init__(self, usage: UsageReader) -> None:
        self._usage = usage

    @property
    def spent(self) -> Usage | None:
        return self._usage.usage
