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

from gateway.http.passing.events import EventsWithoutUsage, WholeEvents
from gateway.http.passing.forward import Forwarded
from gateway.http.passing.headers import passed_back, passed_on
from gateway.http.passing.usage import OllamaUsageReader, UsageReader
from gateway.http.wire.access_log import begin_record, record_of
from gateway.http.wire.answer import EVENTS, LINES, Framing
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
        forwarded = Forwarded(
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


async def test_an_answer_comes_back_whole_with_its_usage() -> None:
    body = json.dumps({"usage": {"prompt_tokens": 3, "completion_tokens": 4, "details": {"a": 1}}})

    async def answer(head, reader, writer) -> None:
        writer.write(whole(body.encode(), status=b"201 Made"))

    async with relaying(answer) as (relay, url), httpx.AsyncClient(timeout=60) as client:
        response = await client.get(url)
        assert (response.status_code, response.text) == (201, body)
        assert response.headers["content-length"] == str(len(body))
        assert relay.usage == Usage(3, 4)


async def test_an_event_comes_before_the_next_one_is_made() -> None:
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
        assert "".join([each async for each in pieces]) == "data: 2\n\n"


async def test_a_stream_that_breaks_off_ends_with_an_error_event() -> None:
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
async def test_a_stream_without_framing_is_whole_with_its_last_event(last: bytes) -> None:
    async def answer(head, reader, writer) -> None:
        begin = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        writer.write(begin + b"data: 1\n\n" + last)
        await writer.drain()
        writer.close()

    async with relaying(answer, EVENTS) as (_, url), httpx.AsyncClient(timeout=60) as client:
        text = (await client.get(url)).text
        assert text.startswith("data: 1\n\n" + last.decode())
        assert ("event: error" in text) is (last == b"")


async def test_another_answer_that_breaks_off_is_cut() -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(CHUNKED % b"application/json" + chunk(b'{"ha'))
        await writer.drain()
        writer.close()

    async with relaying(answer) as (_, url), httpx.AsyncClient(timeout=60) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(url)


async def test_a_stream_of_a_told_length_that_breaks_off_ends_with_an_error_event() -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(whole(b"data: 1\n\n" + b"x" * 90, EVENT_STREAM)[:-80])
        await writer.drain()
        writer.close()

    async with relaying(answer) as (_, url), httpx.AsyncClient(timeout=60) as client:
        response = await client.get(url)
        assert response.status_code == 200
        assert "bad_gateway" in response.text


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_an_answer_without_a_body_may_tell_a_length(status: bytes) -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: 9\r\netag: x\r\n\r\n" % status)

    async with relaying(answer) as (_, url), httpx.AsyncClient(timeout=60) as client:
        response = await client.get(url)
        assert str(response.status_code).encode() == status[:3]
        assert response.headers["etag"] == "x"


async def test_a_stream_of_comments_ends() -> None:
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


async def test_nonsense_is_a_bad_gateway() -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(b"hello\r\n\r\n")

    async with relaying(answer) as (_, url), httpx.AsyncClient(timeout=60) as client:
        response = await client.get(url)
        assert response.status_code == 502
        assert response.json()["error"]["code"] == "bad_gateway"


async def test_a_stream_that_waits_begins_with_comments(monkeypatch) -> None:
    monkeypatch.setattr("gateway.http.passing.forward.REMINDER_S", 0.05)

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
    ("status", "told"), [(b"400 Bad", "no such voice"), (b"200 OK", "streams no answer")]
)
async def test_another_answer_after_comments_is_an_event(monkeypatch, status, told) -> None:
    monkeypatch.setattr("gateway.http.passing.forward.REMINDER_S", 0.05)

    async def answer(head, reader, writer) -> None:
        writer.write(whole(b"no such voice", status=status))

    async with relaying(answer, EVENTS) as (relay, url):
        text = await _after_comments(relay, url)
        assert "event: error" in text
        assert told in text


async def test_a_refusal_keeps_its_status() -> None:
    async def answer(head, reader, writer) -> None:
        pass

    async with relaying(answer, EVENTS) as (relay, url), httpx.AsyncClient(timeout=60) as client:
        relay.before = Refusal("queue_full", "Full.", retry_after_s=3)
        response = await client.get(url)
        assert (response.status_code, response.headers["retry-after"]) == (429, "3")


async def test_a_client_that_leaves_lets_the_server_go() -> None:
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


def test_only_what_is_known_passes() -> None:
    kept = [(b"content-type", b"a/b"), (b"cache-control", b"no-cache")]
    both = b"cookie set-cookie host via x-forwarded-for connection trailer x-litellm-tags x-own"
    to_server = b"authorization x-api-key forwarded x-real-ip x-original-url sec-fetch-mode origin"
    to_server += b" x-http-method-override x-portkey-config cf-connecting-ip content-length"
    to_client = b"alt-svc nel report-to refresh location server date x-bulkhead-left-out link"
    to_client += b" openai-organization anthropic-organization-id"
    to_client += b" access-control-allow-origin x-request-id x-ratelimit-limit-requests"
    # All that may pass is of the whole way, whatever Connection names.
    named = [(b"connection", b"close, content-type")]

    def among(names: bytes) -> list[tuple[bytes, bytes]]:
        return [*kept, *((name, b"other") for name in names.split()), *named]

    of_operators = b"openai-organization openai-project x-priority"
    names = both + b" " + to_server + b" " + of_operators
    by_operator = passed_on(among(names), "b", operator=True)
    assert {name for name, _ in by_operator} >= {*of_operators.split()}
    on = passed_on(among(names), "b", operator=False)
    assert on == [*kept, (b"via", b"other, 1.1 b")]
    sent = [(b"content-length", b"3"), *among(both + b" " + to_client)]
    assert passed_back(sent, 200, framed=True)[:-2] == sent[:3]
    assert {name for name, _ in passed_back(sent, 200, framed=False)} == {
        b"content-type",
        b"cache-control",
        b"content-security-policy",
        b"x-content-type-options",
    }


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_usage_is_found_however_the_answer_is_cut(size: int) -> None:
    texts = [
        b'data: {"text": "\\"usage\\": {\\"prompt_tokens\\": 9}", "usage": null}\n\n',
        b'data: {"usage": {"prompt_tokens": 3, "completion_tokens": 4, "d": {"c": 1}}}\n\n',
        b'data: {"usage":{"input_tokens":2,"output_tokens":5}}\n\ndata: [DONE]\n\n',
    ]
    reader = UsageReader()
    stream = b"".join(texts)
    for begin in range(0, len(stream), size):
        reader.read(stream[begin : begin + size])
    assert reader.usage == Usage(3, 5)


@pytest.mark.parametrize(
    "count", [b"-1", b"1e3", b"4294967297", b"9" * 4300, b'"3"', b"[]", b"true"]
)
def test_what_is_no_count_of_tokens_is_left_out(count: bytes) -> None:
    reader = UsageReader()
    reader.read(b'{"usage": {"prompt_tokens": 1, "completion_tokens": %b}}' % count)
    assert reader.usage is None
    ollama = OllamaUsageReader()
    ollama.read(b'{"done": true, "eval_count": %b}\n' % count)
    assert ollama.usage is None


def test_a_stream_that_its_client_leaves_has_a_token_for_each_delta() -> None:
    reader = UsageReader(prompt_bytes=400)
    reader.count_deltas(b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n')
    assert reader.usage is None
    for _ in range(3):
        reader.count_deltas(b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n')
    reader.count_deltas(b'data: {"type": "content_block_delta", "delta": {"text": "x"}}\n\n')
    assert reader.usage == Usage(100, 4)
    reader.read(b'data: {"usage": {"prompt_tokens": 7, "completion_tokens": 0}}\n\n')
    assert reader.usage == Usage(7, 4), "the larger of both"
    reader.read(b'data: {"usage": {"prompt_tokens": 7, "completion_tokens": 9}}\n\n')
    assert reader.usage == Usage(7, 9)


@pytest.mark.parametrize(
    ("framing", "end"), [(EVENTS, b"\r\n\r\n"), (EVENTS, b"\n\n"), (LINES, b"\n")]
)
def test_an_unfinished_event_is_held_back(framing: Framing, end: bytes) -> None:
    events = WholeEvents(framing)
    assert events.add(b"data: 1") == b""
    assert events.add(end + b"data") == b"data: 1" + end
    assert events.rest == b"data"


@pytest.mark.parametrize("size", [1, 7, 30, 1000])
def test_usage_in_ollama_s_api_is_found_however_the_answer_is_cut(size: int) -> None:
    said = b'{"message":{"content":"\\"eval_count\\":9,"},"done":false}\n'
    last = b'{"done":true,"prompt_eval_count":12,"prompt_eval_duration":5,"eval_count":345}\n'
    text = said * 3 + last
    reader = OllamaUsageReader()
    for begin in range(0, len(text), size):
        reader.read(text[begin : begin + size])
    assert reader.usage == Usage(12, 345)


@pytest.mark.parametrize("size", [1, 10, 1000])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_only_the_event_with_nothing_but_usage_is_left_out(size: int, end: bytes) -> None:
    usage = b'"usage":{"prompt_tokens":1,"completion_tokens":2}'
    kept = [
        b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}',
        b'data: {"choices":[],"usage":null}',
        b'data: {"choices":[{"delta":{}}],' + usage + b"}",
        b": a comment",
        b'event: error\ndata: {"choices":[],' + usage + b"}",
        b"data: [DONE]",
    ]
    left_out = b'data: {"choices": [], ' + usage + b"}"
    text = end.join([*kept[:-1], left_out, kept[-1], b""])
    events = EventsWithoutUsage(EVENTS)
    passed = b"".join(events.add(text[at : at + size]) for at in range(0, len(text), size))
    assert passed + events.rest == end.join([*kept, b""])
