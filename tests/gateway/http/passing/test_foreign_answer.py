"""Forwarding a request to a server, and its answer back."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn

from gateway.http.passing.foreign_answer import RelayResponse
from gateway.http.passing.usage import UsageReader
from gateway.http.wire.access_log import begin_record, record_of
from gateway.http.wire.answer import EVENTS, Framing
from gateway.system.http_client import HttpClient, Question, Server
from gateway.system.refusal import Refusal
from protocol.answers import Usage
from tests.support.raw_server import CHUNKED, chunk, serving, whole

EVENT_STREAM = b"text/event-stream"


class Relay:
    """An application that forwards every request to one server, after `before`."""

    def __init__(self, server: Server, framing: Framing | None) -> None:
        self.client = HttpClient(server)
        self.framing = framing
        self.before: Refusal | asyncio.Event | None = None
        self.usage: Usage | None = None
        self.silence_s = 10.0
        self.closed = asyncio.Event()

    @asynccontextmanager
    async def opened(self):
        try:
            if isinstance(self.before, Refusal):
                raise self.before
            if self.before is not None:
                await self.before.wait()
            answer = await self.client.ask(Question(b"GET", b"/"), 10.0)
            try:
                yield answer
            finally:
                answer.close()
        finally:
            self.closed.set()

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        begin_record(scope)
        while (await receive()).get("more_body"):
            pass
        forwarded = RelayResponse(
            self.opened(),
            "The server",
            UsageReader(),
            silence_s=self.silence_s,
            framing=self.framing,
        )
        await forwarded(scope, receive, send)
        self.usage = record_of(scope).usage


@asynccontextmanager
async def relaying(handler, framing: Framing | None = None) -> AsyncIterator[tuple[Relay, str]]:
    async with serving(handler) as (_, server):
        relay = Relay(server, framing)
        config = uvicorn.Config(relay, log_level="error", lifespan="off")
        front = uvicorn.Server(config)
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        task = asyncio.create_task(front.serve([listening]))
        try:
            yield relay, f"http://127.0.0.1:{port}/v1/x"
        finally:
            front.should_exit = True
            await task


async def test_answer_comes_back_whole_with_its_usage() -> None:
    body = json.dumps({"usage": {"prompt_tokens": 3, "completion_tokens": 4, "details": {"a": 1}}})

    async def answer(head, reader, writer) -> None:
        writer.write(whole(body.encode(), status=b"201 Made"))

    async with relaying(answer) as (relay, url), httpx.AsyncClient(timeout=60) as client:
        response = await client.get(url)
        assert (response.status_code, response.text) == (201, body)
        assert response.headers["content-length"] == str(len(body))
        assert relay.usage == Usage(3, 4)


async def test_event_is_sent_before_the_next_is_made() -> None:
    seen = asyncio.Event()

    async def answer(head, reader, writer) -> None:
        writer.write(CHUNKED % EVENT_STREAM + chunk(b"data: 1\n\n"))
        await writer.drain()
        await seen.wait()
        writer.write(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

    async with (
        relaying(answer) as (_, url),
        httpx.AsyncClient(timeout=60) as client,
        client.stream("GET", url) as response,
    ):
        pieces = response.aiter_text()
        assert await anext(pieces) == "data: 1\n\n"
        seen.set()
        assert "".join([piece async for piece in pieces]) == "data: 2\n\n"


async def test_broken_stream_ends_with_error_event() -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(CHUNKED % EVENT_STREAM + chunk(b'data: 1\n\ndata: {"ha'))
        await writer.drain()
        writer.close()

    async with relaying(answer) as (_, url), httpx.AsyncClient(timeout=60) as client:
        first, _, event, data = (await client.get(url)).text.strip().split("\n")
        assert first == "data: 1"
        assert event == "event: error"
        assert json.loads(data.removeprefix("data: "))["error"]["code"] == "bad_gateway"


@pytest.mark.parametrize(
    "last",
    [
        b"data: [DONE]\n\n",
        b'data: {"type":"message_stop"}',
        b'data: {"type": "image_generation.completed"}\n\n',
        b"",
    ],
)
async def test_stream_without_framing_is_whole_with_its_last_event(last: bytes) -> None:
    async def answer(head, reader, writer) -> None:
        begin = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        writer.write(begin + b"data: 1\n\n" + last)
        await writer.drain()
        writer.close()

    async with relaying(answer, EVENTS) as (_, url), httpx.AsyncClient(timeout=60) as client:
        text = (await client.get(url)).text
        assert text.startswith("data: 1\n\n" + last.decode())
        assert ("event: error" in text) is (last == b"")


async def test_broken_answer_that_is_no_stream_is_cut() -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(CHUNKED % b"application/json" + chunk(b'{"ha'))
        await writer.drain()
        writer.close()

    async with relaying(answer) as (_, url), httpx.AsyncClient(timeout=60) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(url)


async def test_broken_stream_with_content_length_ends_with_error_event() -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(whole(b"data: 1\n\n" + b"x" * 90, EVENT_STREAM)[:-80])
        await writer.drain()
        writer.close()

    async with relaying(answer) as (_, url), httpx.AsyncClient(timeout=60) as client:
        response = await client.get(url)
        assert response.status_code == 200
        assert "bad_gateway" in response.text


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_answer_without_body_may_have_content_length(status: bytes) -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: 9\r\netag: x\r\n\r\n" % status)

    async with relaying(answer) as (_, url), httpx.AsyncClient(timeout=60) as client:
        response = await client.get(url)
        assert str(response.status_code).encode() == status[:3]
        assert response.headers["etag"] == "x"


async def test_stream_of_comments_alone_ends() -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(CHUNKED % EVENT_STREAM + chunk(b"data: 1\n\n"))
        while not writer.is_closing():
            writer.write(chunk(b": wait\n\n"))
            await asyncio.sleep(0.05)

    async with relaying(answer) as (relay, url), httpx.AsyncClient(timeout=60) as client:
        relay.silence_s = 0.5
        text = (await client.get(url)).text
        assert text.startswith("data: 1\n\n: wait\n\n")
        assert "deadline_exceeded" in text


async def test_nonsense_is_bad_gateway() -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(b"hello\r\n\r\n")

    async with relaying(answer) as (_, url), httpx.AsyncClient(timeout=60) as client:
        response = await client.get(url)
        assert response.status_code == 502
        assert response.json()["error"]["code"] == "bad_gateway"


async def test_waiting_stream_begins_with_comments(monkeypatch) -> None:
    monkeypatch.setattr("gateway.http.passing.foreign_answer.REMINDER_S", 0.05)

    async def answer(head, reader, writer) -> None:
        writer.write(whole(b"data: 1\n\n", EVENT_STREAM))

    async with relaying(answer, EVENTS) as (relay, url):
        text = await _after_comments(relay, url)
        assert text.startswith(": waiting\n\n: waiting\n\n")
        assert text.endswith("data: 1\n\n")


async def _after_comments(relay: Relay, url: str) -> str:
    """The whole answer, which is asked for once two comments have come."""
    relay.before = asyncio.Event()
    text = ""
    async with httpx.AsyncClient(timeout=60) as client, client.stream("GET", url) as response:
        async for piece in response.aiter_text():
            text += piece
            if text.count(": waiting") >= 2:
                relay.before.set()
    return text


@pytest.mark.parametrize(
    ("status", "reason"), [(b"400 Bad", "no such voice"), (b"200 OK", "streams no answer")]
)
async def test_answer_that_is_no_stream_is_event_after_comments(
    monkeypatch, status, reason
) -> None:
    monkeypatch.setattr("gateway.http.passing.foreign_answer.REMINDER_S", 0.05)

    async def answer(head, reader, writer) -> None:
        writer.write(whole(b"no such voice", status=status))

    async with relaying(answer, EVENTS) as (relay, url):
        text = await _after_comments(relay, url)
        assert "event: error" in text
        assert reason in text


async def test_refusal_keeps_its_status() -> None:
    async def answer(head, reader, writer) -> None:
        pass

    async with relaying(answer, EVENTS) as (relay, url), httpx.AsyncClient(timeout=60) as client:
        relay.before = Refusal("queue_full", "Full.", retry_after_s=3)
        response = await client.get(url)
        assert (response.status_code, response.headers["retry-after"]) == (429, "3")


async def test_server_is_released_when_client_leaves() -> None:
    gone = asyncio.Event()

    async def answer(head, reader, writer) -> None:
        writer.write(CHUNKED % EVENT_STREAM + chunk(b"data: 1\n\n"))
        await writer.drain()
        await reader.read()
        gone.set()

    async with relaying(answer) as (relay, url), httpx.AsyncClient(timeout=60) as client:
        async with client.stream("GET", url) as response:
            await anext(response.aiter_text())
        async with asyncio.timeout(10):
            await gone.wait()
            await relay.closed.wait()
