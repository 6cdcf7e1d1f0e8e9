"""Passes an HTTP request on to another server, and its answer back, both as they come.

A stream that breaks off ends with an error event; any other answer that breaks off is cut, so that
no client takes the part for the whole.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

import msgspec
from msgspec import Raw, Struct
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.http.access_log import note_usage, record_of
from gateway.http.answer import LINES, Framing, framing_of, stream_headers, until_gone
from gateway.http.bodies import NOT_GIVEN, given
from gateway.http.errors import CLIENT_LEFT, PASSED_ERROR, error_response, note_outcome
from gateway.http.exchange import direct_writer_of
from gateway.requests.request import REMINDER_S
from gateway.system.http_client import AnswerError, Headers, Sink
from gateway.system.refusal import Refusal
from protocol.answers import Usage

# Of one connection alone (RFC 9110, 7.6.1).
_HOP: Final = frozenset(
    b"connection keep-alive proxy-connection te trailer upgrade transfer-encoding "
    b"proxy-authenticate proxy-authorization".split()
)
# Keys and cookies are this gateway's own business, as are the length and the coding of a body. A
# server behind the gateway isn't called by web pages, so they have no origin for it.
_OURS: Final = _HOP | {b"host", b"content-length", b"expect", b"accept-encoding", b"via"}
_SECRETS: Final = {b"authorization", b"x-api-key", b"cookie", b"origin", b"referer", b"forwarded"}
# Headers that say who the server is, or that would act on this gateway's own origin.
_THEIRS: Final = _HOP | {b"set-cookie", b"server", b"date", b"via", b"www-authenticate"}
_THEIR_KINDS: Final = (
    b"access-control-",
    b"strict-transport-",
    b"clear-site-data",
    b"x-request-id",
    # The limits of the gateway's key at an upstream; the client has its own.
    b"x-ratelimit-",
)
# A page of another server has this gateway's origin. In a sandbox it can't act as the operator.
_HARMLESS: Final = [
    (b"content-security-policy", b"sandbox"),
    (b"x-content-type-options", b"nosniff"),
]


def passed_on(headers: Iterable[tuple[bytes, bytes]], via: str) -> Headers:
    """The headers of a client's request that another server gets: without the client's secrets, and
    with `via` as this gateway's name in Via.
    """
    headers = list(headers)
    dropped = _OURS | _SECRETS | _named(headers)
    kept = [
        header
        for header in headers
        if header[0] not in dropped
        and not header[0].startswith((b"x-forwarded-", b"sec-", b"proxy-"))
    ]
    before = [value for name, value in headers if name == b"via"]
    return [*kept, (b"via", b", ".join([*before, b"1.1 " + via.encode()]))]


def passed_back(headers: Headers) -> Headers:
    """The headers of a server's answer that the client gets."""
    dropped = _THEIRS | _named(headers)
    kept = [
        header
        for header in headers
        if header[0] not in dropped and not header[0].startswith(_THEIR_KINDS)
    ]
    return kept + _HARMLESS


def _named(headers: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """The headers that Connection names, which are of one connection, too."""
    named = (value for name, value in headers if name == b"connection")
    return {each.strip().lower() for value in named for each in value.split(b",")}


def refusal_of(error: AnswerError, server: str) -> Refusal:
    """`server` names the server in a sentence."""
    return Refusal("deadline_exceeded" if error.late else "bad_gateway", f"{server} {error}.")


_LONGEST_TOLD: Final = 1000
_MOST_HELD_BYTES: Final = 64 << 10
_NAME: Final = b'"usage"'
_LONGEST_USAGE: Final = 4096
# An object whose objects have no further objects in them.
_OBJECT: Final = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')


class Opened(Protocol):
    """The answer of another server: its head, and its body, which `read` gives piece by piece. For
    `framed` see `Answer`.
    """

    status: int
    headers: Headers
    framed: bool

    async def read(self, silence_s: float, sink: Sink | None = None) -> bytes:
        """As `Answer.read`. Raises: AnswerError, Refusal."""


# The last event of a stream of OpenAI's and of Anthropic's APIs. Within a text, quotes and the ends
# of lines would be escaped.
_LAST: Final = re.compile(
    rb'^data: ?(?:\[DONE\]|\{"error"|.*"type": ?"(?:error|message_stop|'
    rb"response\.(?:completed|failed|incomplete)|(?:speech\.audio|transcript\.text)\.done|"
    rb'image_(?:generation|edit)\.completed)")',
    re.MULTILINE,
)


class Forwarded(Response):
    """The answer of another server, as the response to a client's request.

    `opened` waits until the answer may come, asks for it, and lets everything go at the end, also
    when the client leaves. It raises Refusal if there is no answer. A client that asked for a
    stream, framed as in `framing`, is told meanwhile that time passes.
    """

    def __init__(
        self,
        opened: AbstractAsyncContextManager[Opened],
        server: str,
        usage: UsageReader,
        *,
        silence_s: float,
        framing: Framing | None = None,
        hides_usage: bool = False,
    ) -> None:
        """The answer may pause for `silence_s`. `hides_usage`: the usage in a stream is not for the
        client.
        """
        self.background = None
        self._opened = opened
        self._server = server
        self._silence_s = silence_s
        self._framing = framing
        self._usage = usage
        self._events = EventsWithoutUsage if hides_usage else WholeEvents
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        left = False

        async def watch_client() -> None:
            nonlocal left
            await until_gone(receive)
            left = True
            task.cancel()

        watcher = asyncio.create_task(watch_client())
        try:
            await self._write(scope, receive, send)
        except asyncio.CancelledError:
            if not left:
                raise
            task.uncancel()
            note_outcome(scope, CLIENT_LEFT)
        finally:
            watcher.cancel()
            if (usage := self._usage.usage) is not None:
                note_usage(scope, usage)

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._waited_for(send) as answer:
                record_of(scope).passed = True
                if answer.status >= 400:
                    note_outcome(scope, PASSED_ERROR)
                await self._write_answer(answer, scope, send)
        except Refusal as refusal:
            await self._end(refusal, scope, receive, send)
        except ClientDisconnect:
            note_outcome(scope, CLIENT_LEFT)
        except AnswerError as error:
            await self._end(refusal_of(error, self._server), scope, receive, send)

    @asynccontextmanager
    async def _waited_for(self, send: Send) -> AsyncGenerator[Opened]:
        """The opened answer. While it doesn't come, a stream gets comments."""
        framing = self._framing
        if framing is None:
            async with self._opened as answer:
                yield answer
            return
        opening = asyncio.ensure_future(self._opened.__aenter__())
        try:
            while not (await asyncio.wait((opening,), timeout=REMINDER_S))[0]:
                await self._start(200, stream_headers(framing), send)
                await _send_piece(framing.waiting, send)
        except BaseException:
            opening.cancel()
            raise
        answer = opening.result()
        try:
            yield answer
        except BaseException as error:
            if not await self._opened.__aexit__(type(error), error, error.__traceback__):
                raise
        else:
            await self._opened.__aexit__(None, None, None)

    async def _write_answer(self, answer: Opened, scope: Scope, send: Send) -> None:
        framing = framing_of(answer.headers)
        if self._started and framing is not self._framing:
            # The stream has begun, and the server has answered with something else.
            raise await self._told(answer)
        # Servers that speak HTTP/1.0 frame no stream, as mlx_lm.server's.
        unended = self._framing is not None and framing is not None and not answer.framed
        self._framing = framing
        await self._start(answer.status, passed_back(answer.headers), send)
        events = None if framing is None else self._events(framing)

        loop = asyncio.get_running_loop()
        whole_at = loop.time()

        def passing(piece: bytes) -> bytes:
            nonlocal unended, whole_at
            self._usage.read(piece)
            whole = piece if events is None else events.add(piece)
            if unended and _LAST.search(whole):
                unended = False
            if whole:
                whole_at = loop.time()
            return whole

        def drips() -> bool:
            return loop.time() - whole_at > self._silence_s

        writer = direct_writer_of(scope)

        def sink(piece: bytes) -> bool:
            if writer is None or not writer.writable or drips():
                return False
            writer.write(passing(piece))
            return True

        while piece := await answer.read(self._silence_s, sink):
            await _send_piece(passing(piece), send)
            if drips():
                raise AnswerError(f"completed no event for {self._silence_s:g} s", late=True)
        if unended and not (events is not None and _LAST.search(events.rest)):
            raise AnswerError("closed the connection before its answer was complete")
        rest = b"" if events is None else events.rest
        await send({"type": "http.response.body", "body": rest, "more_body": False})

    async def _told(self, answer: Opened) -> Refusal:
        """Why the server's answer is no stream."""
        if answer.status < 400:
            return Refusal("bad_gateway", f"{self._server} streams no answer: ask for a whole one.")
        text = bytearray()
        while len(text) < _LONGEST_TOLD and (piece := await answer.read(self._silence_s)):
            text += piece
        told = text[:_LONGEST_TOLD].decode(errors="replace")
        return Refusal("bad_gateway", f"{self._server} answered with {answer.status}: {told}")

    async def _start(self, status: int, headers: Headers, send: Send) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": status, "headers": headers})

    async def _end(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._started:
            await error_response(refusal, scope["path"])(scope, receive, send)
            return
        note_outcome(scope, refusal.code)
        if self._framing is not None:
            last = self._framing.failure(refusal, scope["path"])
            await send({"type": "http.response.body", "body": last, "more_body": False})
        elif (writer := direct_writer_of(scope)) is not None:
            writer.cut()


async def _send_piece(piece: bytes, send: Send) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})


class WholeEvents:
    """Holds an unfinished event of a stream back, so that an error that takes the place of the rest
    stands alone.
    """

    def __init__(self, framing: Framing) -> None:
        self.rest = b""
        # An empty line ends an event; a line of JSON is one.
        self._ends = (b"\n",) if framing is LINES else (b"\n\n", b"\r\n\r\n")

    def add(self, piece: bytes) -> bytes:
        """The bytes to pass on now."""
        piece = self.rest + piece
        end = max(
            found + len(each) if (found := piece.rfind(each)) >= 0 else 0 for each in self._ends
        )
        if len(piece) - end > _MOST_HELD_BYTES:
            end = len(piece)
        self.rest = piece[end:]
        return piece[:end]


class _Chunk(Struct):
    choices: list[Raw] | None = None
    usage: Raw = NOT_GIVEN


_DATA: Final = b"data:"


class EventsWithoutUsage(WholeEvents):
    """Leaves the event with the usage out, which the client hasn't asked for. Such clients take the
    first of an event's choices, and this event has none.
    """

    def add(self, piece: bytes) -> bytes:
        whole = super().add(piece)
        if _NAME not in whole:
            return whole
        return b"".join(each for each in _EVENT.findall(whole) if not _is_usage(each))


_EVENT: Final = re.compile(rb".+?(?:\r?\n\r?\n|\Z)", re.DOTALL)


def _is_usage(event: bytes) -> bool:
    if not event.startswith(_DATA):
        return False
    try:
        chunk = msgspec.json.decode(event[len(_DATA) :], type=_Chunk)
    except msgspec.DecodeError:
        return False
    return chunk.choices == [] and given(chunk.usage)


class _Told(Struct):
    """The usage in an answer, with the names of OpenAI's and of Anthropic's APIs."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


# The names in the last object of an answer in Ollama's API.
_COUNT: Final = re.compile(rb'"(prompt_)?eval_count"\s*:\s*([0-9]{1,12})[,}\s]')
_LONGEST_COUNT: Final = 64


class UsageReader:
    """Finds the usage in an answer as it passes. The word in quotes is a field's name: within a
    text the quotes would be escaped.
    """

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._tail = b""
        self._open = False

    def read(self, piece: bytes) -> None:
        text = self._tail + piece
        if not self._open and _NAME not in text:
            self._tail = text[1 - len(_NAME) :]
            return
        # The object may go on in the next piece.
        begin = text.rindex(_NAME) if _NAME in text else 0
        self._open = True
        self._tail = text[begin : begin + _LONGEST_USAGE]
        for found in _OBJECT.finditer(text):
            self._note(found[1])
            if found.start() >= begin:
                self._open, self._tail = False, b""

    def _note(self, text: bytes) -> None:
        try:
            told = msgspec.json.decode(text, type=_Told)
        except msgspec.DecodeError:
            return
        before = self.usage or Usage(0, 0)
        # Anthropic's streams tell the prompt first, and the answer last.
        self.usage = Usage(
            max(before.prompt_tokens, told.prompt_tokens or told.input_tokens or 0),
            max(before.completion_tokens, told.completion_tokens or told.output_tokens or 0),
        )


class OllamaUsageReader(UsageReader):
    """Finds the usage in an answer in Ollama's API."""

    def read(self, piece: bytes) -> None:
        text = self._tail + piece
        self._tail = text[-_LONGEST_COUNT:]
        for found in _COUNT.finditer(text):
            before = self.usage or Usage(0, 0)
            count = int(found[2])
            self.usage = (
                Usage(count, before.completion_tokens)
                if found[1]
                else Usage(before.prompt_tokens, count)
            )
