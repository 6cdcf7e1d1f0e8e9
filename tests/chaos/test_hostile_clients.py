"""Clients that never finish, that send nonsense, that come in hundreds, beside streams that must
not notice, and a health check that must answer.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.support.edge import shortened
from tests.support.gateway import Gateway, chat_body, eventually
from tests.support.raw_http import HOST, connect, get, post, send
from tests.support.streams import Probe, open_stream

pytestmark = pytest.mark.slow

STORY = "Tell me a story."
CHAT = "/v1/chat/completions"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
# As many descriptors as a gateway with one model needs, and some for its clients.
FILES: Final = 250
# The bound on bodies, what decoding takes beside it, and what the allocator keeps.
MOST_GROWTH_BYTES: Final = 200e6


def _nested(chance: random.Random) -> bytes:
    item = chance.choice([b"[]", b"[[]]", b"{}", b'""'])
    size = chance.choice([10_000, 500_000])
    text = b'{"model":"demo","prompt":[%s]}' % b",".join([item] * size)
    return post("/v1/completions", text)


HOSTILE: Final[dict[str, Callable[[random.Random], bytes]]] = {
    "nothing": lambda _: b"",
    "half a head": lambda chance: get("/livez")[: chance.randrange(1, 30)],
    "half a body": lambda chance: post(CHAT, b"x" * chance.randrange(1, 3_000_000))[:-1],
    "a long header": lambda chance: get("/livez", f"X-Long: {'x' * chance.randrange(1, 300_000)}"),
    "many headers": lambda _: get("/livez", *["X-Many: x"] * 20_000),
    "trailers": lambda _: CHUNKED + b"0\r\n" + b"X-Many: x\r\n" * 20_000,
    "noise": lambda chance: chance.randbytes(chance.randrange(1, 5000)),
    "nested lists": _nested,
    "a million messages": lambda _: post(
        CHAT, b'{"model":"demo","messages":[%s]}' % b",".join([b'{"role":"user"}'] * 400_000)
    ),
    "pipelined": lambda chance: (
        post(CHAT, chat_body(STORY, max_tokens=4)) + get("/v1/models") * 200
    ),
    "a page": lambda _: post(CHAT, chat_body("Hello", keep_alive=0), "Origin: http://evil.example"),
}


class Crowd:
    """Threads of clients, each of which does one of these and leaves some time later."""

    def __init__(self, gateway: Gateway, seed: int) -> None:
        self.count = 0
        self.problems: list[str] = []
        self._gateway = gateway
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._act, args=(random.Random(seed + number),))
            for number in range(3)
        ]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)

    def _act(self, chance: random.Random) -> None:
        open_until: list[tuple[float, socket.socket]] = []
        with contextlib.ExitStack() as stack:
            while not self._ending.wait(chance.random() * 0.2):
                name = chance.choice(list(HOSTILE))
                data = HOSTILE[name](chance)
                for _ in range(chance.choice([1, 1, 1, 100]) if len(data) < 1000 else 1):
                    try:
                        connection = stack.enter_context(connect(self._gateway, timeout_s=5))
                    except OSError as error:
                        self.problems.append(f"{name}: {error!r}")
                        continue
                    with contextlib.suppress(TimeoutError):
                        send(connection, data)
                    if chance.random() < 0.2:
                        with contextlib.suppress(OSError):
                            connection.shutdown(socket.SHUT_WR)
                    open_until.append((time.monotonic() + chance.random() * 5, connection))
                    self.count += 1
                for until, connection in open_until:
                    if until < time.monotonic():
                        connection.close()
                open_until = [pair for pair in open_until if pair[1].fileno() >= 0]


@pytest.mark.parametrize(
    "seconds", [pytest.param(5, id="short"), pytest.param(90, id="long", marks=pytest.mark.chaos)]
)
@pytest.mark.timeout(400)
def test_hostile_client_disturbs_no_other(
    seconds: float,
    start_gateway: Callable[..., Gateway],
    tmp_path: Path,
    tell: Callable[..., None],
    seed: int,
) -> None:
    environment = shortened(tmp_path / "site", seconds=2.0, bodies_bytes=32 << 20, files=FILES)
    gateway = start_gateway(environment=environment)
    gateway.load()
    whole = gateway.say(STORY, temperature=0.0, max_tokens=80)
    pid = gateway.worker_pid()
    process = psutil.Process(gateway.pid)
    before = process.memory_info().rss
    files = process.num_fds()
    most_files = streams = 0
    until = time.monotonic() + seconds
    with Probe(gateway, "/livez", every_s=0.1) as health, Crowd(gateway, seed) as crowd:
        while time.monotonic() < until:
            stream = open_stream(gateway, STORY, temperature=0.0, max_tokens=80).join()
            assert (stream.text, stream.error, stream.done) == (whole, None, True)
            streams += 1
            most_files = max(most_files, process.num_fds())
    assert not health.failures
    assert not crowd.problems
    assert most_files < FILES
    assert gateway.worker_pid() == pid, "no page has unloaded it"
    eventually(lambda: gateway.model()["active_requests"] + gateway.model()["queue_depth"] == 0)
    # But for the connection of who looks.
    eventually(lambda: process.num_fds() <= files + 2)
    grown = process.memory_info().rss - before
    assert grown < MOST_GROWTH_BYTES
    assert "Too many open files" not in gateway.log
    assert "Traceback" not in gateway.log
    tell(
        clients=crowd.count,
        streams=streams,
        probes=health.count,
        slowest_probe_ms=f"{health.slowest_s * 1e3:.0f}",
        most_descriptors=most_files,
        memory_grown_mb=f"{grown / 1e6:.0f}",
    )
