"""Requests made at random, to a command and to an upstream whose servers answer at random: no
answer is the gateway's own failure, and nothing of them stays.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from gateway.config.model_folders import DEMO_FOLDER
from tests.support.commands import HOSTILE, guarded, hostile
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.ports import free_port
from tests.support.raw_http import HOST, connect, parse, post

pytestmark = pytest.mark.slow

_CLIENTS = 12
_READ_S = 20.0
_PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/audio/speech")
_FORMS = ("/v1/audio/transcriptions", "/v1/images/edits")
_OWN = ("own", "own%2f..%2fx", "own/%2e%2e", "own/..;/x", "own//", "own/%ff", "own/a?model=x", "")


def _request(chance: random.Random) -> bytes:
    model = chance.choice(("odd", "box/odd"))
    kind = chance.randrange(10)
    if kind < 5:
        body = {"model": model, "stream": chance.random() < 0.5, "messages": [], "input": "x"}
        if chance.random() < 0.2:
            body[chance.choice(("preset", "Model", "models", "store"))] = "x"
        text = json.dumps(body).encode()
        if chance.random() < 0.2:
            text = text[:-1] + chance.choice((b"", b', "a": ' + b"[" * 200_000, b', "\xff": 1}'))
        return post(chance.choice(_PATHS), text)
    if kind < 8:
        return _form(chance, model)
    method = chance.choice((b"HEAD", b"GET", b"DELETE", b"POST"))
    path = f"/servers/odd/{chance.choice(_OWN)}".encode()
    ranges = chance.choice((b"", b"Range: bytes=0-1\r\n", b"Range: bytes=9-1,2-3\r\n"))
    return b"%b %b HTTP/1.1\r\n%b%b\r\n" % (method, path, HOST, ranges)


def _form(chance: random.Random, model: str) -> bytes:
    def part(name: str, content: bytes) -> bytes:
        disposition = f'Content-Disposition: form-data; name="{name}"'.encode()
        return b"--b\r\n%b\r\n\r\n%b\r\n" % (disposition, content)

    parts = [part("model", model.encode()), part("file", b"\r\n--" * chance.randrange(50_000))]
    names = chance.choices(("model", "a", "fallbacks", ""), k=chance.choice((0, 0, 1, 300)))
    parts += [part(name, b"x") for name in names]
    if chance.random() < 0.3:
        chance.shuffle(parts)
    text = b"".join(parts) + chance.choice((b"--b--\r\n", b"--b--\r\n", b"", b"--b--x", b"--b"))
    return post(chance.choice(_FORMS), text, "Content-Type: multipart/form-data; boundary=b")


def _talk(gateway: Gateway, chance: random.Random) -> int:
    """The status of a request's answer; 0: the client left first, or none came."""
    request = _request(chance)
    with suppress(OSError, ValueError, IndexError), connect(gateway, _READ_S) as connection:
        cut = chance.random() < 0.1
        connection.sendall(request[: len(request) // 2] if cut else request)
        if cut or chance.random() < 0.2:
            time.sleep(chance.choice((0, 0.01, 0.1)))
            return 0
        return parse(connection.recv(65536)).status
    return 0


class _Clients:
    """Talk until `until`, a time of the monotonic clock, each on a thread."""

    def __init__(self, gateway: Gateway, seed: int, until: float) -> None:
        self.statuses: Counter[int] = Counter()
        self._gateway = gateway
        self._until = until
        self.threads = [
            threading.Thread(target=self._talk, args=(random.Random(seed + index),))
            for index in range(_CLIENTS)
        ]
        for thread in self.threads:
            thread.start()

    def _talk(self, chance: random.Random) -> None:
        while time.monotonic() < self._until:
            self.statuses[_talk(self._gateway, chance)] += 1

    def join(self) -> None:
        for thread in self.threads:
            thread.join()


@pytest.fixture
def box(seed: int) -> Iterator[str]:
    """A server with the model `odd`, which answers at random."""
    port = free_port()
    process = subprocess.Popen([sys.executable, HOSTILE, f"--port={port}", f"--seed={seed}"])
    yield f"http://127.0.0.1:{port}/v1"
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(10, id="short"), pytest.param(600, id="long", marks=pytest.mark.chaos)],
)
@pytest.mark.timeout(1800)
def test_other_servers_and_their_clients_leave_nothing(
    seconds: int,
    box: str,
    seed: int,
    start_gateway: Callable[..., Gateway],
    tell: Callable[..., None],
) -> None:
    odd = hostile("odd", f"--seed={seed}", paths=["/own"], silence_s="5s")
    upstream = f'[upstreams.box]\nurl = "{box}"\nsilence_s = "5s"\n'
    demo = f'[models.demo]\npath = "{DEMO_FOLDER}"\n'
    gateway = start_gateway(models=(), config=odd + demo + upstream)
    gateway.load("odd")
    gateway.load("demo")
    process = psutil.Process(gateway.pid)
    files, servers = process.num_fds(), len(guarded(gateway, "odd"))
    clients = _Clients(gateway, seed, time.monotonic() + seconds)
    slowest_s = 0.0
    while any(thread.is_alive() for thread in clients.threads):
        begun = time.monotonic()
        assert gateway.client.get("/livez").status_code == 200
        slowest_s = max(slowest_s, time.monotonic() - begun)
        time.sleep(0.02)
    clients.join()
    tell(
        requests=clients.statuses.total(),
        livez_ms=round(1000 * slowest_s),
        **{f"status_{status}": count for status, count in sorted(clients.statuses.items())},
    )
    assert 500 not in clients.statuses
    assert {200, 400, 502} <= set(clients.statuses)
    eventually(lambda: _rests(gateway), START_S)
    # Connections that are kept are closed after some seconds.
    eventually(lambda: process.num_fds() <= files + 16, START_S)
    assert len(guarded(gateway, "odd")) == servers
    assert gateway.client.get("/health").json()["faults"] == []
    assert gateway.say("hi", "demo", max_tokens=3)
    assert "Traceback" not in gateway.log


def _rests(gateway: Gateway) -> bool:
    status = gateway.client.get("/admin/v1/status").json()
    models = [model["active_requests"] + model["queue_depth"] for model in status["models"]]
    return not sum(models) + sum(upstream["active_requests"] for upstream in status["upstreams"])
