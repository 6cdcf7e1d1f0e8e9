"""Clients that never finish, or come in thousands: they cost little, and nobody else pays."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from itertools import islice

import httpx
import psutil
import pytest

from tests.support.edge import shortened
from tests.support.faults import in_engine_step
from tests.support.gateway import START_S, Gateway, chat_body, eventually
from tests.support.raw_http import HOST, RawResponse, ask, connect, get, parse, post, read_all, send
from tests.support.streams import Stream, open_stream

CHAT = "/v1/chat/completions"
STORY = "Tell me a story."


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A second for everything, 4 MiB for all bodies, and 200 descriptors."""
    site = tmp_path_factory.mktemp("edge") / "site"
    environment = shortened(site, files=200)
    with (site / "sitecustomize.py").open("a") as file:
        file.write(in_engine_step("time.sleep(0.05)"))
    running = Gateway(environment=environment)
    try:
        running.load()
        yield running
    finally:
        status = running.stop()
    assert status == 0, running.log


def _stream(gateway: Gateway, max_tokens: int) -> Stream:
    stream = open_stream(gateway, STORY, max_tokens=max_tokens, ignore_eos=True)
    eventually(lambda: stream.text, START_S)
    return stream


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"", None, None),
        (b"\r\n\r\n", None, None),
        (b"GET /livez HTTP/1.1\r\nHost: loc", 408, "request_timeout"),
        (b"GET /livez HTTP/1.1\r\n" + HOST, 408, "request_timeout"),
        (post(CHAT, chat_body(STORY))[:-9], 408, "request_timeout"),
        (
            b"POST /v1/completions HTTP/1.1\r\n"
            + HOST
            + b"Transfer-Encoding: chunked\r\n\r\n8\r\n{",
            408,
            "request_timeout",
        ),
    ],
)
def test_unfinished_request_is_bounded(
    gateway: Gateway, data: bytes, status: int | None, code: str | None
) -> None:
    with connect(gateway) as connection:
        send(connection, data)
        received = read_all(connection)
    if status is None:
        assert received == b""
        return
    answer = parse(received)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-request-id"]


def test_dripping_gives_no_more_time(gateway: Gateway) -> None:
    with connect(gateway) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\n" + HOST)

        def refused() -> bool:
            connection.sendall(b"X-Drip: x\r\n")
            connection.settimeout(0.05)
            try:
                return connection.recv(1) != b""
            except TimeoutError:
                return False

        eventually(refused)


def test_a_body_that_nobody_waits_for(gateway: Gateway) -> None:
    with connect(gateway) as connection:
        send(connection, b"POST /nowhere HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\n")
        answer = parse(read_all(connection))
    assert answer.status == 404


def test_an_answer_that_nobody_takes(gateway: Gateway) -> None:
    # More than the system's buffers hold.
    with (gateway.state_dir / "logs" / "demo.log").open("a") as log:
        log.write(f"{'x' * 1000}\n" * 9000)
    with connect(gateway) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        send(connection, get("/admin/v1/models/demo/logs?lines=10000"))
        # It has been accepted; the rest is not taken.
        assert connection.recv(1)
        eventually(lambda: not _is_held(gateway, connection))


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(gateway: Gateway) -> None:
    stream = _stream(gateway, 80)
    with connect(gateway) as connection:
        send(connection, get("/livez"))
        assert parse(read_all(connection)).status == 200
    assert stream.join().done
    assert stream.error is None


def _is_held(gateway: Gateway, connection: socket.socket) -> bool:
    """Whether the gateway has a descriptor for its side of this connection."""
    port = connection.getsockname()[1]
    return any(
        net_connection.raddr and net_connection.raddr.port == port
        for net_connection in psutil.Process(gateway.pid).net_connections("tcp")
    )


def test_bodies_have_a_bound_together(gateway: Gateway) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 3000000\r\n\r\n"

    def refused() -> RawResponse | None:
        with connect(gateway) as first:
            send(first, head + b" " * 2_999_000)
            # It may have been read before the first, and is asked again then.
            answer = ask(gateway, _closing(3_000_000))
            # Small ones have their place.
            assert gateway.say("Hello", max_tokens=1)
            return answer if answer.status == 503 else None

    answer = eventually(refused)
    assert answer.error["code"] == "overloaded"
    assert int(answer.headers["retry-after"]) > 0
    eventually(lambda: ask(gateway, _closing(3_000_000)).status == 400)


def _closing(size: int) -> bytes:
    return post("/v1/completions", b" " * size, "Connection: close")


@pytest.mark.slow
def test_at_the_limit_of_files_health_still_answers(gateway: Gateway) -> None:
    body = chat_body(STORY, max_tokens=1000, ignore_eos=True, stream=True)
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(gateway.client.stream("POST", CHAT, json=body)).iter_lines()
        assert next(lines)
        held = []
        for number in range(400):
            connection = stack.enter_context(connect(gateway))
            held.append(connection)
            send(connection, (b"", b"GET /liv", post(CHAT, chat_body(STORY))[:-3])[number % 3])
        assert psutil.Process(gateway.pid).num_fds() < 190
        assert ask(gateway, get("/health", "Connection: close")).status == 200
        assert gateway.say("Hello", max_tokens=1)
        footprint = gateway.status()["memory"]["gateway_bytes"]
        assert footprint is not None
        for connection in held:
            connection.close()
        assert not [line for line in islice(lines, 200) if "error" in line or "DONE" in line]
    assert "Too many open files" not in gateway.log


def test_when_all_are_served_the_next_is_told(start_gateway: Callable[..., Gateway]) -> None:
    running = start_gateway(config="[gateway]\nmax_connections = 8\n")
    followers = []
    running.client.close()
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(connect(running))
            send(connection, get("/admin/v1/events"))
            assert connection.recv(1)
            followers.append(connection)
        for _ in range(3):
            answer = ask(running, post(CHAT, chat_body("Hello")))
            assert (answer.status, answer.error["code"]) == (503, "overloaded")
            assert int(answer.headers["retry-after"]) > 0
            for path in ("/livez", "/health"):
                probe = ask(running, get(path))
                assert (probe.status, probe.headers["connection"]) == (200, "close")
        for _ in range(60):
            stack.enter_context(connect(running))
        assert ask(running, get("/livez")).status == 200
        assert ask(running, get("/v1/models")).status == 503
    eventually(lambda: ask(running, get("/v1/models", "Connection: close")).status == 200)
    running.client = httpx.Client(base_url=running.url, timeout=120.0)


@pytest.mark.slow
def test_unfinished_bodies_cost_no_more_than_the_bound(
    start_gateway: Callable[..., Gateway],
) -> None:
    running = start_gateway()
    text = json.dumps({"model": "demo", "prompt": "x" * (8 << 20)}).encode()
    part = post("/v1/completions", text)[:-1]
    before = psutil.Process(running.pid).memory_info().rss
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            send(stack.enter_context(connect(running)), part)
        time.sleep(0.5)
        grown = psutil.Process(running.pid).memory_info().rss - before
        assert grown < 4 * len(text) * 1.5
