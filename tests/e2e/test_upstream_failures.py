"""Upstreams that die, that lead back, and that answer as no server should."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import httpx
import pytest

from tests.support.gateway import START_S, Gateway, eventually
from tests.support.ports import free_port
from tests.support.raw_server import Handler, RawServer, whole
from tests.support.streams import Stream, open_stream
from tests.support.upstreams import (
    behind,
    listed,
    reload_with,
    stand_ins,
    upstream_of,
    upstreams,
)

pytestmark = pytest.mark.slow

STORY = "Tell me a story."


class TestKilled:
    def test_thirty_requests_while_one_of_two_is_killed_and_started_again(self) -> None:
        port = str(free_port())
        with ExitStack() as stack:
            one = Gateway("--port", port)
            stack.callback(lambda: one.stop())
            two = stack.enter_context(behind(models=("demo",)))
            first = stack.enter_context(behind(one=one, two=two))
            for gateway in (one, two):
                gateway.load()
            eventually(lambda: _states(first) == ["ready", "ready"])

            begun = _ten(first, 1000)
            eventually(lambda: all(stream.text for stream in begun), START_S)
            there, elsewhere = _running(first)
            assert there > 0 < elsewhere
            one.process.kill()
            meanwhile = _ten(first, 100)
            for stream in begun:
                stream.join()
            broken = [stream for stream in begun if not stream.done]
            assert len(broken) == there
            assert all(stream.events == ["error"] for stream in broken)
            assert {stream.error["code"] for stream in broken if stream.error} == {"bad_gateway"}

            one.stop()
            one = Gateway("--port", port)
            one.load()
            assert all(stream.join().done for stream in meanwhile), "none had begun at the dead one"
            eventually(lambda: _states(first) == ["ready", "ready"], START_S)
            after = _ten(first, 300)
            eventually(lambda: all(_running(first)))
            assert all(stream.join().done for stream in after)


def _ten(first: Gateway, tokens: int) -> list[Stream]:
    fields = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}
    return [open_stream(first, STORY, **fields) for _ in range(10)]


def _states(first: Gateway) -> list[str]:
    return [item["state"] for item in listed(first).values()]


def _running(first: Gateway) -> list[int]:
    return [entry["active_requests"] for entry in upstream_of(first)]


def _asked(gateway: Gateway) -> float:
    """The requests with chats that have come to it, refused ones too."""
    found = re.findall(
        r'^bulkhead_requests_total\{.*route="/v1/chat/completions".*\} ([0-9.]+)$',
        gateway.client.get("/metrics").text,
        re.MULTILINE,
    )
    return sum(map(float, found))


class TestCircles:
    def test_a_ring_of_three(self) -> None:
        with (
            behind(models=("demo",)) as one,
            behind(one=one, models=("demo",)) as two,
            behind(two=two, models=("demo",)) as three,
        ):
            eventually(lambda: "two/one/demo" in listed(three))
            reload_with(one, upstreams(three=three))
            ring = (one, two, three)
            wanted = [
                {"demo", "three/demo", "three/two/demo"},
                {"demo", "one/demo", "one/three/demo"},
                {"demo", "two/demo", "two/one/demo"},
            ]
            eventually(lambda: [set(listed(gateway)) for gateway in ring] == wanted)
            assert one.say("hi", "three/two/demo", max_tokens=2)
            before = [_asked(gateway) for gateway in ring]
            assert one.chat("hi", "three/two/one/demo").status_code == 404
            assert one.chat("hi", "three/none").status_code == 404
            assert [_asked(gateway) for gateway in ring] == [before[0] + 2, *before[1:]], (
                "none went on"
            )
            # Whoever sends it on all the same is refused where it comes back.
            via = f"1.1 bulkhead-{one.status()['instance']}"
            refused = three.chat("hi", "two/one/demo", {"via": via})
            assert refused.status_code == 508
            rises = [_asked(gateway) - count for gateway, count in zip(ring, before, strict=True)]
            assert rises == [3, 1, 1]

    def test_itself_under_another_name(self) -> None:
        with behind(models=("demo",)) as one:
            here = one.url.replace("127.0.0.1", "localhost")
            reload_with(one, f'[upstreams.me]\nurl = "{here}"\n')
            eventually(lambda: "this gateway itself" in (upstream_of(one)[0]["reason"] or ""))
            assert set(listed(one)) == {"demo"}
            before = _asked(one)
            refused = one.chat("hi", "me/demo")
            assert refused.status_code == 503
            assert "this gateway itself, under another address" in refused.text
            assert _asked(one) == before + 1
            assert one.say("hi", max_tokens=2)

    def test_itself_behind_a_proxy_that_takes_via_out(self) -> None:
        with behind(models=("demo",)) as one:
            url = one.url

            async def pass_on(head: bytes, _reader: Any, writer: Any) -> None:
                async with httpx.AsyncClient() as client:
                    answer = await client.get(f"{url}/v1/models")
                assert b"GET /v1/models" in head
                writer.write(whole(answer.content))

            async def run() -> None:
                async with stand_ins({"me": pass_on}) as (tables, _):
                    await asyncio.to_thread(reload_with, one, tables)
                    await asyncio.to_thread(
                        eventually,
                        lambda: "this gateway itself" in (upstream_of(one)[0]["reason"] or ""),
                    )

            asyncio.run(run())


def _listing(*names: str) -> bytes:
    models = ", ".join(f'{{"id": "{name}", "state": "ready", "via": ["x"]}}' for name in names)
    return whole(b'{"data": [%b]}' % models.encode())


def _answering(name: str, answer: bytes) -> Handler:
    """It lists one model, and answers every request for the model with these bytes."""

    async def handle(head: bytes, _reader: Any, writer: Any) -> None:
        if head.startswith(b"GET"):
            writer.write(_listing(name))
            return
        writer.write(answer)
        await writer.drain()
        writer.close()

    return handle


def _status(status: str, *headers: str) -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {status}", *headers, "content-length: 4"))
    return f"{head}\r\n\r\nbusy".encode()


# What it answers to a request, and the status and the text that the client gets if nobody else has
# the model.
BAD: dict[str, tuple[bytes, int, str]] = {
    "half": (b"HTTP/1.1 200 OK\r\ncontent-ty", 502, "closed the connection before"),
    "nonsense": (b"\0\1\2 nothing like HTTP\r\n\r\n", 502, "no HTTP"),
    "moved": (_status("307 Temporary", "location: http://b/"), 502, "redirects to another address"),
    "locked": (_status("401 Unauthorized"), 502, "doesn't let this gateway in"),
    "barred": (_status("403 Forbidden"), 502, "doesn't let this gateway in"),
    "busy": (_status("429 Too Many", "retry-after: 7"), 429, "busy"),
    "down": (_status("503 Unavailable"), 503, "busy"),
}


class TestBadAnswers:
    def test_alone_each_is_told_and_with_another_it_answers(self) -> None:
        aliases = ", ".join(f'"{text}"' for text in BAD)
        good = Gateway(models=(), config=f'[models.demo]\npath = "demo"\naliases = [{aliases}]\n')
        try:
            good.load()
            asyncio.run(_with_bad(lambda tables, servers: _check_bad(good, tables, servers)))
        finally:
            good.stop()


def _check_bad(good: Gateway, tables: str, servers: dict[str, RawServer]) -> None:
    first = Gateway(models=(), config=tables)
    try:
        eventually(lambda: len(listed(first)) == len(BAD))
        for name, (_, status, text) in BAD.items():
            refused = first.chat("hi", name)
            assert (name, refused.status_code) == (name, status), refused.text
            assert text in refused.text
            assert "location" not in refused.headers
            assert refused.headers.get("retry-after") == ("7" if name == "busy" else None), name
    finally:
        first.stop()
    first = Gateway(models=(), config=tables + upstreams(good=good))
    try:
        eventually(lambda: len(listed(first)) == len(BAD) + 1)
        for name in BAD:
            asked = _posts(servers[name])
            assert first.say("hi", name, max_tokens=2)
            assert _posts(servers[name]) == asked + 1, f"{name} was asked first"
    finally:
        first.stop()


def _posts(server: RawServer) -> int:
    return sum(head.startswith(b"POST") for head in server.heads)


async def _with_bad(check: Callable[[str, dict[str, RawServer]], None]) -> None:
    handlers = {name: _answering(name, answer) for name, (answer, _, _) in BAD.items()}
    async with stand_ins(handlers) as (tables, servers):
        await asyncio.to_thread(check, tables, servers)


class Hole:
    """Lists a model once, and lets no connection in afterwards, as a machine that sleeps."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1)
        self.port: int = self._listening.getsockname()[1]
        self._held: list[socket.socket] = []
        threading.Thread(target=self._list_once, daemon=True).start()

    def _list_once(self) -> None:
        connection, _ = self._listening.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(_listing("demo"))
        # A system drops connections for which there is no more room.
        for _ in range(4):
            each = socket.socket()
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", self.port))
            self._held.append(each)

    def close(self) -> None:
        for item in (*self._held, self._listening):
            item.close()


class TestSlow:
    def test_upstream_without_connections_makes_room_for_another(self) -> None:
        """Most likely before a look has found out."""
        with behind(models=("demo",)) as good, closing(Hole()) as hole:
            good.load()
            tables = f'[upstreams.hole]\nurl = "http://127.0.0.1:{hole.port}/v1"\n'
            first = Gateway(models=(), config=tables + upstreams(good=good))
            try:
                eventually(lambda: {"hole/demo", "good/demo"} <= set(listed(first)))
                assert first.say("hi", max_tokens=2)
                eventually(
                    lambda: "could not be reached" in (upstream_of(first)[0]["reason"] or "")
                )
                assert first.chat("hi", "hole/demo").status_code == 503
            finally:
                first.stop()

    @pytest.mark.parametrize("lists", [True, False])
    def test_own_routes_answer_during_an_upstreams_failure(self, lists: bool) -> None:
        """The upstream accepts connections, and answers nothing until it is told to."""

        async def run() -> None:
            released = asyncio.Event()
            handled = 0

            async def hang(head: bytes, _reader: Any, writer: Any) -> None:
                nonlocal handled
                if lists and head.startswith(b"GET"):
                    writer.write(_listing("slow"))
                    return
                handled += 1
                await released.wait()
                writer.close()

            async with stand_ins({"slow": hang}) as (tables, _):
                first = await asyncio.to_thread(Gateway, config=tables)
                try:
                    await asyncio.to_thread(
                        eventually, lambda: handled or "slow/slow" in listed(first)
                    )
                    count = 20 if lists else 0
                    waiting = [open_stream(first, "hi", "slow/slow") for _ in range(count)]
                    await asyncio.to_thread(eventually, lambda: handled >= len(waiting))
                    await asyncio.to_thread(_ask_everything, first)
                    assert not any(stream.error for stream in waiting)
                    released.set()
                    for stream in waiting:
                        await asyncio.to_thread(stream.join)
                    codes = {stream.error["code"] for stream in waiting if stream.error}
                    assert codes == ({"bad_gateway"} if lists else set())
                finally:
                    released.set()
                    await asyncio.to_thread(first.stop)

        asyncio.run(run())


def _ask_everything(first: Gateway) -> None:
    for path in ("/v1/models", "/admin/v1/status", "/ui", "/health", "/metrics", "/api/tags"):
        assert first.client.get(path).status_code == 200, path
    assert first.say("hi", max_tokens=2)
