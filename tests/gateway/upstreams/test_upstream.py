"""Looks at upstreams that misbehave: each ends in time, and says what is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.config.model_settings import UpstreamSettings
from gateway.system.events import EventLog
from gateway.upstreams import upstream as upstream_file
from gateway.upstreams.upstream import Upstream
from tests.support.ports import free_port
from tests.support.raw_server import CHUNKED, Handler, chunk, serving, whole

LIST = whole(b'{"data": [{"id": "m"}]}')
MOVED = whole(b"", status=b"301 Moved\r\nlocation: https://other/v1/models")
# What comes back through a proxy that takes Via out of requests.
OWN = b'{"data": [{"id": "m", "via": ["0000000000000000"]}]}'


def _upstream(port: int, **settings: object) -> Upstream:
    keys = UpstreamSettings(url=f"http://127.0.0.1:{port}/v1", **settings)  # type: ignore[arg-type]
    return Upstream("box", keys, "0" * 16, EventLog())


async def _hang(_head: bytes, _reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def _trickle(
    _head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.write(CHUNKED % b"application/json")
    while not writer.is_closing():
        writer.write(chunk(b" "))
        await asyncio.sleep(0.05)


async def _flood(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(CHUNKED % b"application/json")
    while not writer.is_closing():
        writer.write(chunk(b" " * 100_000))
        await writer.drain()


def _saying(answer: bytes) -> Handler:
    async def say(
        _head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    return say


@pytest.mark.parametrize("handler", [_hang, _trickle])
async def test_a_list_that_does_not_come_is_not_waited_for(
    handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_file, "_LOOK_S", 0.5)
    assert "did not list its models within 0.5 s" in await _trouble(handler)


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (_flood, "lists its models in more than 1 MiB"),
        (_saying(b""), "closed the connection before its answer was complete"),
        (_saying(b"SSH-2.0-OpenSSH_9.6\r\n"), "sent an answer that is no HTTP"),
        (_saying(whole(b"<html>", b"text/html")), "answered with no list of models"),
        (_saying(b"HTTP/1.1 200 OK\r\ncontent-"), "closed the connection before"),
        (_saying(whole(b"{}", status=b"401 Unauthorized")), "wants a key, and key_file names none"),
        (_saying(MOVED), "redirects to 'https://other/v1/models'"),
        (_saying(whole(OWN)), "is this gateway itself"),
        (_saying(whole(b"{}", status=b"508 Loop Detected")), "is this gateway itself"),
        (_saying(whole(b"{}", status=b"500 Oh")), "answered with 500"),
    ],
)
async def test_failed_look_gives_reason(handler: Handler, reason: str) -> None:
    assert reason in await _trouble(handler)


async def _trouble(handler: Handler) -> str:
    """Of an upstream that has been looked at."""
    async with serving(handler) as (_, server):
        upstream = _upstream(server.port)
        async with asyncio.timeout(10):
            await upstream.look()
        trouble = upstream.trouble()
        assert trouble is not None
        assert upstream.asked.is_set()
        upstream.close()
        return trouble


async def test_as_many_requests_run_there_as_may() -> None:
    upstream = _upstream(free_port(), max_concurrency=1)
    assert not upstream.full
    with upstream.asking("m"):
        assert upstream.full
    assert not upstream.full


async def test_unreachable_upstream_is_reported() -> None:
    upstream = _upstream(free_port())
    await upstream.look()
    assert "can't be reached" in (upstream.trouble() or "")


async def test_the_key_is_shown_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "box.key"
    file.touch(0o600)
    async with serving(_saying(LIST)) as (raw, server):
        upstream = _upstream(server.port, key_file=str(file))
        await upstream.look()
        assert "holds no key" in (upstream.trouble() or "")
        for key in ("sk-one", "sk-two"):
            file.write_text(key + "\n")
            await upstream.look()
            assert f"authorization: Bearer {key}\r\n".encode() in raw.heads[-1]
            assert b"via: 1.1 bulkhead-" in raw.heads[-1]
        file.chmod(0o644)
        await upstream.look()
        assert "others have rights to it" in (upstream.trouble() or "")


async def test_models_stay_known_while_it_is_away() -> None:
    async with serving(_saying(LIST)) as (_, server):
        upstream = _upstream(server.port)
        await upstream.look()
        assert list(upstream.offers) == ["m"]
        assert upstream.trouble() is None
    await upstream.look()
    assert list(upstream.offers) == ["m"]
    assert upstream.trouble() is not None


async def test_load_counts_what_others_and_we_have_there() -> None:
    listing = whole(
        b'{"data": [{"id": "m", "active_requests": 3, "queue_depth": 2, "via": ["b"]}]}'
    )
    async with serving(_saying(listing)) as (_, server):
        upstream = _upstream(server.port)
        with upstream.asking("m"):
            await upstream.look()
            assert upstream.load("m") == 5, "ours is among those that it counts"
            with upstream.asking("m"):
                assert upstream.load("m") == 6
                assert not upstream.idle.is_set()
        assert upstream.load("m") == 4
        assert upstream.idle.is_set()


@pytest.mark.parametrize(
    ("url", "target"),
    [("http://a:1/v1", b"/v1/x?y"), ("http://a", b"/v1/x?y"), ("http://a/api/v2/", b"/api/v2/x?y")],
)
async def test_paths_there(url: str, target: bytes) -> None:
    upstream = Upstream("a", UpstreamSettings(url=url), "0" * 16, EventLog())
    assert upstream.target(b"/v1/x?y") == target
