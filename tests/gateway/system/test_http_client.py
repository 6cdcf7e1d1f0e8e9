"""The client for relays, against a server that sends bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.system.http_client import AnswerError, HttpClient, Question, Server
from tests.support.raw_server import CHUNKED, chunk, serving, whole

GET = Question(b"GET", b"/health")
HEAD_S = 10.0


async def _read(client: HttpClient, question: Question) -> tuple[int, bytes]:
    answer = await client.ask(question, HEAD_S)
    body = b""
    try:
        while piece := await answer.read(HEAD_S):
            body += piece
    finally:
        answer.close()
    return answer.status, body


async def test_a_connection_is_kept_for_the_next_question() -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(whole(head.split()[1]))

    async with serving(answer) as (raw, server):
        client = HttpClient(server)
        assert [await _read(client, GET) for _ in range(3)] == [(200, b"/health")] * 3
        assert raw.connections == 1
        client.close()


async def test_a_connection_that_was_closed_meanwhile_is_replaced() -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(whole(b"x"))
        if len(raw.heads) == 1:
            # The second question is read and not answered.
            await reader.readuntil(b"\r\n\r\n")
            writer.close()

    async with serving(answer) as (raw, server):
        client = HttpClient(server)
        assert [await _read(client, GET) for _ in range(2)] == [(200, b"x")] * 2
        assert raw.connections == 2


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nabc")
        writer.close()

    async with serving(answer) as (_, server):
        assert await _read(HttpClient(server), GET) == (200, b"abc")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", "closed the connection"),
        (CHUNKED % b"a/b" + chunk(b"abc") + b"zz\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000, "64 KiB"),
        (b"", "closed the connection"),
    ],
)
async def test_incomplete_answer_is_error(said: bytes, reason: str) -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(said)
        await writer.drain()
        writer.close()

    async with serving(answer) as (_, server):
        with pytest.raises(AnswerError, match=reason) as caught:
            await _read(HttpClient(server), GET)
        assert caught.value.sent


async def test_silence_before_and_within_an_answer_is_an_error() -> None:
    async def answer(head, reader, writer) -> None:
        if b"/half" in head:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")
        await reader.read()

    async with serving(answer) as (_, server):
        client = HttpClient(server)
        with pytest.raises(AnswerError, match="no answer within") as caught:
            await client.ask(GET, 0.1)
        assert caught.value.late
        begun = await client.ask(Question(b"GET", b"/half"), HEAD_S)
        assert await begun.read(HEAD_S) == b"abc"
        with pytest.raises(AnswerError, match="was silent"):
            await begun.read(0.1)
        begun.close()


async def test_missing_server_means_nothing_was_sent() -> None:
    async def answer(head, reader, writer) -> None:
        pass

    async with serving(answer) as (_, server):
        pass
    with pytest.raises(AnswerError) as caught:
        await HttpClient(server).ask(GET, HEAD_S)
    assert not caught.value.sent


async def test_a_sink_gets_the_pieces_that_come_while_the_reader_waits() -> None:
    more = asyncio.Event()

    async def answer(head, reader, writer) -> None:
        writer.write(CHUNKED % b"a/b")
        await more.wait()
        for data in (b"a", b"b"):
            writer.write(chunk(data))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with serving(answer) as (_, server):
        taken: list[bytes] = []

        def sink(piece: bytes) -> bool:
            taken.append(piece)
            return True

        begun = await HttpClient(server).ask(GET, HEAD_S)
        more.set()
        assert await begun.read(HEAD_S, sink) == b""
        assert b"".join(taken) == b"ab"
        begun.close()


async def test_a_body_of_pieces_goes_as_it_comes() -> None:
    got = asyncio.Queue[bytes]()

    async def answer(head, reader, writer) -> None:
        while b"three" not in (piece := await reader.read(100)):
            await got.put(piece)
        writer.write(whole(head))

    async def pieces() -> AsyncIterator[bytes]:
        yield b"o"
        assert b"o" in await got.get()
        yield b"three"

    async with serving(answer) as (_, server):
        question = Question(b"POST", b"/", (), pieces(), 6)
        status, head = await _read(HttpClient(server), question)
        assert status == 200
        assert b"content-length: 6\r\n" in head


async def test_an_answer_may_come_before_the_whole_body() -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(whole(b"too large", status=b"413 Too Large"))

    async def pieces() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.Event().wait()

    async with serving(answer) as (_, server):
        question = Question(b"POST", b"/", (), pieces(), 9)
        assert await _read(HttpClient(server), question) == (413, b"too large")


async def test_a_server_that_answers_early_may_read_on() -> None:
    headed = asyncio.Event()

    async def answer(head, reader, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\na")
        await reader.readexactly(6)
        writer.write(b"bc")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"o"
        await headed.wait()
        yield b"three"

    async with serving(answer) as (raw, server):
        client = HttpClient(server)
        for _ in range(2):
            headed.clear()
            early = await client.ask(Question(b"POST", b"/", (), pieces(), 6), HEAD_S)
            assert await early.read(HEAD_S) == b"a"
            headed.set()
            assert await early.read(HEAD_S) == b"bc"
            assert await early.read(HEAD_S) == b""
            early.close()
        assert raw.connections == 1
        client.close()


async def test_a_body_that_fails_after_the_head_ends_the_answer() -> None:
    headed = asyncio.Event()

    async def failing() -> AsyncIterator[bytes]:
        yield b"x"
        await headed.wait()
        raise OSError("the disk is gone")

    async def answer(head, reader, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\na")
        await reader.read()

    async with serving(answer) as (_, server):
        early = await HttpClient(server).ask(Question(b"POST", b"/", (), failing(), 6), HEAD_S)
        assert await early.read(HEAD_S) == b"a"
        headed.set()
        with pytest.raises(AnswerError, match="the disk is gone"):
            await early.read(HEAD_S)
        early.close()


async def test_a_slow_reader_slows_the_server() -> None:
    written = 0

    async def answer(head, reader, writer) -> None:
        nonlocal written
        writer.write(CHUNKED % b"a/b")
        for _ in range(1000):
            writer.write(chunk(b"x" * 65536))
            await writer.drain()
            written += 65536

    async with serving(answer) as (_, server):
        begun = await HttpClient(server).ask(GET, HEAD_S)
        await asyncio.sleep(0.3)
        assert written < 32 << 20
        begun.close()


async def test_a_unix_socket_does_as_well(short_path) -> None:
    async def serve(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(whole(b"x"))

    path = str(short_path / "s")
    listening = await asyncio.start_unix_server(serve, path)
    client = HttpClient(Server("localhost", socket=path))
    assert await _read(client, GET) == (200, b"x")
    client.close()
    listening.close()


async def test_a_body_that_fails_ends_its_question_on_a_kept_connection() -> None:
    async def answer(head, reader, writer) -> None:
        if b"/first" in head:
            # The head and the body come apart.
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.write(b"x")
        else:
            await reader.read()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.sleep(0.05)
        raise ValueError("ambiguous")

    async with serving(answer) as (raw, server):
        client = HttpClient(server)
        assert await _read(client, Question(b"GET", b"/first")) == (200, b"x")
        async with asyncio.timeout(HEAD_S):
            with pytest.raises(ValueError, match="ambiguous"):
                await client.ask(Question(b"POST", b"/", (), pieces(), 6), HEAD_S)
        assert raw.connections == 1


@pytest.mark.parametrize(
    ("method", "head"),
    [
        (b"HEAD", b"200 OK\r\ncontent-length: 7"),
        (b"HEAD", b"200 OK\r\ntransfer-encoding: chunked"),
        (b"GET", b"204 No Content\r\ncontent-length: 7"),
        (b"GET", b"304 Not Modified\r\ncontent-length: 7"),
    ],
)
async def test_an_answer_without_a_body_ends_with_its_head(method: bytes, head: bytes) -> None:
    async def answer(head_, reader, writer) -> None:
        writer.write(b"HTTP/1.1 " + head + b"\r\n\r\n")

    async with serving(answer) as (_, server):
        client = HttpClient(server)
        for _ in range(2):
            async with asyncio.timeout(HEAD_S):
                assert (await _read(client, Question(method, b"/")))[1] == b""


async def test_an_answer_to_no_question_changes_nothing() -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(whole(b"x") + whole(b"other", b"a/b", b"999 Odd"))

    async with serving(answer) as (raw, server):
        client = HttpClient(server)
        answered = await client.ask(GET, HEAD_S)
        assert (answered.status, len(answered.headers)) == (200, 2)
        assert await answered.read(HEAD_S) == b"x"
        answered.close()
        assert (await _read(client, GET))[0] == 200
        assert raw.connections == 2


@pytest.mark.parametrize("status", [b"600", b"999"])
async def test_a_status_that_http_does_not_have_is_no_answer(status: bytes) -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(whole(b"", status=status + b" Odd"))

    async with serving(answer) as (_, server):
        with pytest.raises(AnswerError, match=f"answered with {status.decode()}"):
            await _read(HttpClient(server), GET)


async def test_a_listener_that_nobody_vouches_for_gets_nothing() -> None:
    async def answer(head, reader, writer) -> None:
        writer.write(whole(b"x"))

    vouched = [True, False]

    async def vouch() -> bool:
        return vouched.pop(0)

    async with serving(answer) as (raw, server):
        client = HttpClient(server, vouch=vouch)
        assert await _read(client, GET) == (200, b"x")
        kept = await client.ask(GET, HEAD_S)
        with pytest.raises(AnswerError, match="another program") as caught:
            await client.ask(GET, HEAD_S)
        assert not caught.value.sent
        assert len(raw.heads) == 2
        kept.close()
