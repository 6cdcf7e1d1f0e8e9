"""Pictures of other machines: a server here, which is called only where a test allows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.http.generation import remote_pictures as remote
from gateway.http.generation.remote_pictures import RemotePictures
from gateway.http.wire.errors import PictureError
from tests.support.pictures import RED, png

MOST_BYTES = 1 << 20
LONG_S = 60.0


class Server:
    """Answers each path with the bytes it was given, and hangs on others."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.asked: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head)
            answer = self.answers.get(head.split()[1].decode())
            if answer is None:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nno more")
                await writer.drain()
                # Until the other side has had enough.
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    yield server
    listening.close()


def _answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _anywhere(_address: str) -> bool:
    return True


async def _refused(fetcher: RemotePictures, url: str, deadline_s: float = LONG_S) -> str:
    with pytest.raises(PictureError) as refused:
        await fetcher.fetch(url, MOST_BYTES, deadline_s)
    return str(refused.value)


async def test_remote_picture_is_fetched(server: Server) -> None:
    server.answers["/a.png?b=1"] = _answer(png(RED))
    fetcher = RemotePictures(_anywhere)
    url = server.url("/a.png?b=1", "localhost")
    assert await fetcher.fetch(url, MOST_BYTES, LONG_S) == png(RED)
    head = server.asked[0].lower()
    assert f"host: localhost:{server.port}".encode() in head
    assert b"accept-encoding: identity" in head


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433", "[::ffff:127.0.0.1]"]
)
async def test_loopback_is_refused(server: Server, host: str) -> None:
    server.answers["/a.png"] = _answer(png(RED))
    refused = await _refused(RemotePictures(), server.url("/a.png", host))
    assert "not an address of the internet" in refused or "can't be fetched" in refused
    assert server.asked == []


async def test_names_of_loopback_are_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(2, 1, 6, "", (address, 80)) for address in ("1.1.1.1", "127.0.0.1")]
    monkeypatch.setattr(remote.socket, "getaddrinfo", lambda *_args, **_options: found)
    assert "not an address of the internet" in await _refused(
        RemotePictures(), "http://rebinds.example/a"
    )
    assert server.asked == []


async def test_redirections_are_followed(server: Server) -> None:
    server.answers["/a"] = _answer(b"", "302 Found", "Location: /b.png")
    server.answers["/b.png"] = _answer(png(RED))
    assert await RemotePictures(_anywhere).fetch(server.url("/a"), MOST_BYTES, LONG_S) == png(RED)
    server.answers["/round"] = _answer(b"", "302 Found", "Location: /round")
    assert "redirected" in await _refused(RemotePictures(_anywhere), server.url("/round"))


async def test_redirection_to_loopback_is_refused(server: Server) -> None:
    """The first address is taken for a public one; the second is looked at, too."""
    server.answers["/a"] = _answer(b"", "302 Found", f"Location: {server.url('/b', '127.0.0.2')}")
    fetcher = RemotePictures(lambda address: address == "127.0.0.1")
    assert "127.0.0.2 is not an address" in await _refused(fetcher, server.url("/a"))
    assert len(server.asked) == 1
    server.answers["/c"] = _answer(b"", "302 Found", "Location: file:///etc/passwd")
    assert "no http or https address" in await _refused(fetcher, server.url("/c"))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (_answer(b"", "404 Not Found"), "status 404"),
        (_answer(bytes(MOST_BYTES + 1)), "too large"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(MOST_BYTES + 1), "too large"),
        (_answer(b"", "200 OK", "Content-Encoding: gzip"), "compressed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort", "can't be fetched"),
        (b"SSH-2.0\r\n", "can't be fetched"),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", "status 304"),
        (_answer(b"", "302 Found"), "status 302"),
        (_answer(b"", "302 Found", "Location: http://["), "no address"),
        (_answer(b"", "302 Found", "Location: //a..b/"), "no name of a machine"),
        (_answer(b"", "302 Found", "Location: http://127.0.0.1:99999/"), "no port"),
    ],
)
async def test_answers_that_are_no_picture_are_refused(
    server: Server, answer: bytes, reason: str
) -> None:
    server.answers["/a.png"] = answer
    assert reason in await _refused(RemotePictures(_anywhere), server.url("/a.png"))


async def test_slow_picture_is_refused(server: Server) -> None:
    """It sends something, and then no more."""
    assert "did not come within" in await _refused(
        RemotePictures(_anywhere), server.url("/slow"), 1.0
    )


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://", "no http or https address"),
        ("http://[::1", "no address"),
        ("http://a b/", "can't be fetched"),
        ("http://user:x@host/", "a user name or a password"),
        ("http://a..b/x.png", "'a..b' is no name of a machine"),
        ("http://.../x.png", "'...' is no name of a machine"),
        ("http://.a/", "no name of a machine"),
        ("http://xn--/x.png", "no address"),
        ("http://xn--a.com/", "no address"),
        (f"http://{'a' * 64}.com/", "1 to 63 characters"),
        ("http://1.1.1.1:99999/", "99999 is no port"),
        ("http://1.1.1.1:0/", "0 is no port"),
    ],
)
async def test_invalid_address_is_refused(url: str, reason: str) -> None:
    assert reason in await _refused(RemotePictures(_anywhere), url)
