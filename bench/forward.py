"""`python -m bench.forward`: what it costs to reach a command's server through the gateway.

A server that answers at once, and that streams at a steady pace, is asked directly, through a
gateway whose model it is, and through bare uvicorn with the gateway's HTTP client, in turns: no
gateway on uvicorn can cost less than the last. The time of a request is that of one client after
another; the rate is that of 32 streams, whose events come 100 times a second each, as an engine
would make them, and as fast as the server can. The gateway's processor time is told beside, as it
depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from bench.machine import cpu_s, describe_machine
from gateway.system.http_client import AnswerError, HttpClient, Question, Server

_SILENCE_S: Final = 60.0
_STREAMS: Final = 32
_EVENTS: Final = 200
_EVENT: Final = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"
_WHOLE: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 59\r\n\r\n"
    b'{"choices":[],"usage":{"prompt_tokens":1,"total_tokens":2}}'
)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection. The body of a request says how many events it wants, and how fast."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        length = next(
            (
                int(line[15:])
                for line in head.lower().split(b"\r\n")
                if line[:15] == b"content-length:"
            ),
            0,
        )
        asked = json.loads(await reader.readexactly(length) or b"{}")
        if not asked.get("stream"):
            writer.write(_WHOLE)
            continue
        writer.write(_HEAD % b"text/event-stream")
        began = time.monotonic()
        for number in range(asked["events"]):
            writer.write(b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT))
            await writer.drain()
            await asyncio.sleep(max(0.0, began + number * asked["every_s"] - time.monotonic()))
        writer.write(b"0\r\n\r\n")


async def _serve(port: int) -> None:
    async with await asyncio.start_server(_answer, "127.0.0.1", port) as listening:
        await listening.serve_forever()


def _relay(port: int, to: int) -> None:
    """Bare uvicorn at `port`, which passes everything on to the server at the port `to`."""
    client: HttpClient | None = None

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal client
        client = client or HttpClient(Server("127.0.0.1", to))
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        headers = [header for header in scope["headers"] if header[0] == b"content-type"]
        question = Question(b"POST", scope["raw_path"], headers, body)
        answer = await client.ask(question, _SILENCE_S)
        kept = [pair for pair in answer.headers if pair[0] != b"transfer-encoding"]
        head = {"type": "http.response.start", "status": answer.status, "headers": kept}
        await send(head)
        while piece := await answer.read(_SILENCE_S):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        answer.close()

    uvicorn.run(app, port=port, log_level="error", lifespan="off")


async def ask(client: HttpClient, **more: object) -> int:
    """Ask once, and return the bytes of the answer."""
    body = json.dumps({"model": "w", "messages": [], **more}).encode()
    headers = [(b"content-type", b"application/json")]
    question = Question(b"POST", b"/v1/chat/completions", headers, body)
    answer = await client.ask(question, _SILENCE_S)
    size = 0
    try:
        while piece := await answer.read(_SILENCE_S):
            size += len(piece)
    finally:
        answer.close()
    assert answer.status == 200
    return size


async def _latency_ms(client: HttpClient, requests: int) -> list[float]:
    times = []
    for _ in range(requests):
        began = time.perf_counter()
        await ask(client)
        times.append((time.perf_counter() - began) * 1000)
    return times


async def _rate(client: HttpClient, events: int, every_s: float) -> float:
    """Events a second of all streams together."""
    began = time.perf_counter()
    more = {"stream": True, "events": events, "every_s": every_s}
    sizes = await asyncio.gather(*(ask(client, **more) for _ in range(_STREAMS)))
    assert set(sizes) == {events * len(_EVENT)}
    return _STREAMS * events / (time.perf_counter() - began)


def command_table() -> str:
    """The table of the model w, which is this server."""
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "bench.forward", "--serve", "{port}"]
    return f'[models.w]\ncommand = {json.dumps(command)}\nfolder = "{root}"\nmemory = "300MB"\n'


@contextmanager
def gateway_with(tables: str, folder: str) -> Iterator[tuple[int, int]]:
    """A gateway with this configuration; yields its port and pid."""
    config = Path(folder) / "config.toml"
    config.write_text(tables)
    arguments = ["serve", "--port", "0", "--spare", "0", "--config", str(config)]
    arguments += ["--state-dir", str(Path(folder) / "state")]
    gateway = subprocess.Popen(
        [sys.executable, "-m", "gateway", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert gateway.stdout is not None
        port = int(gateway.stdout.readline().rpartition(":")[2].strip().rstrip("/"))
        yield port, gateway.pid
    finally:
        gateway.terminate()
        gateway.wait()


def _server_port(gateway_pid: int) -> int:
    """The port of the server behind the gateway."""
    found = (child.cmdline() for child in psutil.Process(gateway_pid).children(recursive=True))
    return next(int(words[-1]) for words in found if "--serve" in words)


async def _measure(port: int, gateway_pid: int, requests: int, rounds: int) -> None:
    through = HttpClient(Server("127.0.0.1", port))
    await ask(through)
    to = _server_port(gateway_pid)
    with socket.create_server(("127.0.0.1", 0)) as free:
        relay_port = free.getsockname()[1]
    relay = multiprocessing.get_context("spawn").Process(
        target=_relay, args=(relay_port, to), daemon=True
    )
    relay.start()
    bare = HttpClient(Server("127.0.0.1", relay_port))
    try:
        await _until_there(bare)
        others = {"directly": HttpClient(Server("127.0.0.1", to)), "through bare uvicorn": bare}
        await compare(others, through, gateway_pid, requests, rounds)
    finally:
        relay.kill()


async def _until_there(client: HttpClient) -> None:
    for _ in range(100):
        try:
            await ask(client)
            return
        except AnswerError:
            await asyncio.sleep(0.1)


async def compare(
    others: dict[str, HttpClient],
    through: HttpClient,
    gateway_pid: int,
    requests: int,
    rounds: int,
) -> None:
    """Print the figures of the gateway, and of the other ways to the same server. All have been
    asked before.
    """
    pids = {"gateway": gateway_pid}
    spent_s = {"request": 0.0, "event": 0.0}
    clients = {**others, "through the gateway": through}
    times: dict[str, list[float]] = {client: [] for client in clients}
    steady: dict[str, list[float]] = {client: [] for client in clients}
    fast: dict[str, list[float]] = {client: [] for client in clients}
    for _ in range(rounds):
        for name, client in clients.items():
            before_s = cpu_s(pids)["gateway"]
            times[name] += await _latency_ms(client, requests)
            between_s = cpu_s(pids)["gateway"]
            steady[name].append(await _rate(client, _EVENTS, 0.01))
            if client is through:
                spent_s["request"] += between_s - before_s
                spent_s["event"] += cpu_s(pids)["gateway"] - between_s
            fast[name].append(await _rate(client, 1000, 0.0))
    print("| | a request (ms) | more | 32 streams of 100 events/s | ratio | as fast as they come |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    request_ms, rate = (statistics.median(entry["directly"]) for entry in (times, steady))
    for name in clients:
        ms, events = statistics.median(times[name]), statistics.median(steady[name])
        print(
            f"| {name} | {ms:.3f} | {ms - request_ms:.3f} | {events:.0f} | {events / rate:.2f} "
            f"| {statistics.median(fast[name]):.0f} |"
        )
    each_ms = 1000 * spent_s["request"] / (rounds * requests)
    event_us = 1e6 * spent_s["event"] / (rounds * _STREAMS * _EVENTS)
    print(
        f"\nThe gateway's processor time: {each_ms:.3f} ms a request, {event_us:.0f} µs an event."
    )


def main() -> int:
    parser = argparse.ArgumentParser("bench.forward", description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", type=int, help="be the server, at this port")
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(_serve(arguments.serve))
    print(describe_machine())
    with (
        tempfile.TemporaryDirectory("bulkhead", dir="/tmp") as folder,
        gateway_with(command_table(), folder) as (port, pid),
    ):
        uvloop.run(_measure(port, pid, arguments.requests, arguments.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
