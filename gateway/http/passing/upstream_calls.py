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

from gateway.http.passing.foreign_answer import ForeignAnswer, refusal_of
from gateway.http.passing.outbound import OutboundRequest
from gateway.http.passing.usage import UsageReader
from gateway.http.wire.access_log import record_of
from gateway.http.wire.answer import EVENTS, Framing, framing_of
from gateway.http.wire.auth import caller_of, take_places
from gateway.http.wire.errors import invalid
from gateway.models.fleet import Fleet
from gateway.system.http_client import Answer, AnswerError, Headers, Sink
from gateway.system.refusal import Refusal
from gateway.upstreams.upstream import REDIRECTS, Upstream
from gateway.upstreams.upstreams import Way, in_order

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

    server = "The upstream"

    def __init__(
        self, http: HttpRequest, ways: Sequence[Way], framing: Framing | None = None
    ) -> None:
        """`framing` is that of the stream that the client wants, if it wants one.

        Raises: Refusal: the request asks for what only this gateway's own models have."""
        if "x-mailbox" in http.headers:
            raise invalid("X-Mailbox: answers of upstreams can't be kept.", "X-Mailbox")
        self.http = http
        self._ways = list(ways)
        self.framing = framing
        self.hides_usage = False
        self.fields: Collection[str] = set.intersection(
            *({*way.upstream.settings.fields} for way in ways)
        )

    @property
    def model_name(self) -> str:
        return self._ways[0].name_there

    @property
    def silence_s(self) -> float:
        return max(way.upstream.settings.silence_s for way in self._ways)

    def adapt(self, fields: dict[str, Raw]) -> None:
        """Raises: Refusal: the request asks for a response that the upstream stores."""
        if self.http.url.path.startswith(_RESPONSES):
            _store_nothing(fields)
        caller = caller_of(self.http)
        if not caller.admin:
            # The order of others' requests, and how long their models stay loaded, is nothing that
            # every caller may change.
            for name in ("priority", "keep_alive"):
                fields.pop(name, None)
        if caller.name is not None and self.framing is EVENTS:
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
            self.hides_usage = True

    def admit(self, usage: UsageReader) -> None:
        """Raises: Refusal: the gateway or the limits of the key allow no request now."""
        fleet: Fleet = self.http.app.state.fleet
        fleet.check_serves()
        first = self._ways[0]
        several = len({way.upstream.name for way in self._ways}) > 1
        if first.offer is not None:
            # Other names are the client's, who may make up any number of them.
            record_of(self.http.scope).model = first.name_there if several else first.id
        take_places(self.http, [usage])

    @asynccontextmanager
    async def open_answer(
        self, outbound: OutboundRequest, usage: UsageReader
    ) -> AsyncGenerator[ForeignAnswer]:
        # A form can be sent once.
        once = outbound.form is not None
        left = [way for way in in_order(self._ways) if not way.upstream.full]
        refusal = None if left else self._unavailable()
        while left:
            way = left.pop(0)
            with way.upstream.asking(way.name_there) as began:
                try:
                    answer = await _ask(way, outbound)
                except AnswerError as error:
                    way.upstream.failed(error)
                    refusal = _refusal_of(error, way.upstream)
                    if error.sent and (error.late or once):
                        break
                    continue
                try:
                    begun = await self._begun(way, answer, last=not left or once)
                    if begun is None:
                        continue
                    way.upstream.served(began)
                    # No other upstream can go on with an answer that has begun.
                    left.clear()
                    yield begun
                    return
                except AnswerError as error:
                    way.upstream.failed(error)
                    refusal = _refusal_of(error, way.upstream)
                    if error.late or once:
                        break
                finally:
                    answer.close()
        assert refusal is not None
        raise refusal

    async def _begun(self, way: Way, answer: Answer, *, last: bool) -> ForeignAnswer | None:
        """The answer once it has begun: a stream that only tells that time passes hasn't. None: the
        upstream refuses the request for now; a `last` one is asked no more, so its refusal counts.

        Raises:
            AnswerError: there is no answer.
            Refusal: the upstream doesn't let this gateway in, or sends it away.
        """
        upstream = way.upstream
        if answer.status in (*_LOCKED, *REDIRECTS):
            if not last:
                return None
            # Where it redirects to, another server would get the client's request, with its key.
            reason, remedy = (
                ("doesn't let this gateway in", "its operator has to look at the key")
                if answer.status in _LOCKED
                else ("redirects to another address", "its url has to be corrected")
            )
            raise Refusal(
                "bad_gateway",
                f"The upstream {upstream.name!r} {reason} (it answered with {answer.status}): "
                f"{remedy}.",
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
        return _BegunAnswer(upstream, answer, first)

    def _unavailable(self) -> Refusal:
        """Why no upstream can be asked."""
        upstreams = [way.upstream for way in self._ways]
        reasons = "; ".join(f"{one.name}: {one.trouble() or _FULL}" for one in upstreams)
        wait_s = min(one.wait_s() for one in upstreams)
        return Refusal(
            "model_unavailable",
            f"{self.model_name!r} can't be had from any upstream now ({reasons}).",
            retry_after_s=max(1, math.ceil(wait_s)),
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


async def _ask(way: Way, outbound: OutboundRequest) -> Answer:
    """Raises: AnswerError."""
    upstream = way.upstream
    target = upstream.target(outbound.target)
    question = outbound.question(target, way.name_there, upstream.secrets())
    return await upstream.client.ask(question, upstream.settings.silence_s)


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


class _BegunAnswer:
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
