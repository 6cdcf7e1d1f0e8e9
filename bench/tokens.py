"""`python -m bench.tokens`: what a token costs the gateway in processor time.

The gateway streams answers of a model of 2 layers to clients with an API key, with metrics and a
line in the log for each. Beside it, in turn, bare uvicorn streams as many events of the same size
from nowhere, which is the least that serving streams in this way costs. Time is that of the one
process alone. Both are clocked: an event comes when the engine has made a step, or a timer ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from bench.load import Address, RunningStreams, completion_request
from bench.machine import cpu_s, describe_machine
from bench.models import TINY, endless_model, model_parser
from bench.results import GATEWAY
from bench.servers import BulkheadServer

_TARGET_US: Final = 40.0
_HOST: Final = "127.0.0.1"
_PROMPT: Final = "Tell me a story."
_IDLE_S: Final = 5.0
# Events of bare uvicorn come sixty times a second, as the gateway writes at most.
_EVERY_S: Final = 1 / 60


class TokenCosts(NamedTuple):
    """A list has an entry a round. Costs are microseconds of processor time a token; `idle` is the
    gateway's share of a core without requests.
    """

    ours: list[float]
    bare: list[float]
    tokens_per_event: list[float]
    tokens_per_s: list[float]
    idle: float


def main() -> int:
    parser = model_parser(
        "bench.tokens", __doc__, rounds=5, model=None, shown="2 layers of width 64"
    )
    parser.add_argument("--streams", type=int, default=32, metavar="N")
    parser.add_argument("--tokens", type=int, default=256, metavar="N", help="for each stream")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bh-") as name:
        folder = Path(name)
        model = endless_model(parsed, folder, TINY)
        gateway = BulkheadServer(model, folder / "state", folder / "log")
        reference = UvicornAlone()
        try:
            costs = _measure(gateway, reference, parsed)
        finally:
            gateway.stop()
            reference.stop()
    print(f"{describe_machine()}; {parsed.streams} streams")
    print(f"of {parsed.tokens} tokens, medians of {parsed.rounds} rounds\n")
    _print_costs(costs)
    return 0


def _measure(
    gateway: BulkheadServer, reference: UvicornAlone, parsed: argparse.Namespace
) -> TokenCosts:
    streams, tokens = parsed.streams, parsed.tokens

    def asked(key: str | None) -> list[bytes]:
        return [
            completion_request(
                gateway.model, f"{number} {_PROMPT}", tokens, {"temperature": 0.0}, key
            )
            for number in range(streams)
        ]

    uvloop.run(_read(gateway.address, asked(None)))
    pid = gateway.processes()[GATEWAY]
    requests = asked(_new_key(gateway.address))
    began = _cpu_s(pid)
    time.sleep(_IDLE_S)
    costs = TokenCosts([], [], [], [], (_cpu_s(pid) - began) / _IDLE_S)
    for _ in range(parsed.rounds):
        began = time.perf_counter()
        cost, events, size = _cost_us(pid, gateway.address, requests, streams * tokens)
        costs.tokens_per_s.append(streams * tokens / (time.perf_counter() - began))
        costs.ours.append(cost)
        costs.tokens_per_event.append(streams * tokens / events)
        same = [_bare_request(events // streams, size // events)] * streams
        costs.bare.append(_cost_us(reference.pid, reference.address, same, streams * tokens)[0])
    return costs


def _print_costs(costs: TokenCosts) -> None:
    middle, least = statistics.median(costs.ours), statistics.median(costs.bare)
    ratio = statistics.median(a / b for a, b in zip(costs.ours, costs.bare, strict=True))
    rate, merged = statistics.median(costs.tokens_per_s), statistics.median(costs.tokens_per_event)
    print("| CPU time (µs) | a token | an event |")
    print("| --- | ---: | ---: |")
    print(f"| Bulkhead's gateway | {middle:.1f} | {middle * merged:.1f} |")
    print(f"| of that, without requests | {1e6 * costs.idle / rate:.1f} | |")
    print(f"| bare uvicorn | {least:.1f} | {least * merged:.1f} |")
    print(f"| ratio | {ratio:.2f} | |")
    print(f"\n{rate:.0f} tokens/s, {merged:.2f} an event. Target: {_TARGET_US:g} µs a token.")
    print(f"Rounds: {', '.join(f'{cost:.1f}' for cost in costs.ours)}.")


def _cpu_s(pid: int) -> float:
    return cpu_s({"it": pid})["it"]


def _cost_us(
    pid: int, address: Address, requests: Sequence[bytes], tokens: int
) -> tuple[float, int, int]:
    """Microseconds of this process for each of so many tokens, and the events and bytes sent."""
    before = _cpu_s(pid)
    events, size = uvloop.run(_read(address, requests))
    return (_cpu_s(pid) - before) * 1e6 / tokens, events, size


async def _read(address: Address, requests: Sequence[bytes]) -> tuple[int, int]:
    """Send all requests and read their answers: the events and bytes of these."""
    running = await RunningStreams.open(address, requests)
    streams = await running.read()
    return sum(stream.frames for stream in streams), sum(
        read_stream.bytes for read_stream in streams
    )


def _new_key(address: Address) -> str:
    """A new API key. From then on each request needs one."""
    url = f"http://{address[0]}:{address[1]}/admin/v1/keys"
    body = json.dumps({"name": "bench"}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
        key: str = json.load(answer)["key"]
    return key


def _bare_request(events: int, size: int) -> bytes:
    return f"GET /{events}/{size} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


class UvicornAlone:
    """uvicorn and a function that sends events of one size on a clock, in a process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve_bare, args=(theirs,), daemon=True)
        self._process.start()
        self.address: Address = (_HOST, ours.recv())

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()


def _serve_bare(connection: Connection) -> None:
    listener = socket.create_server((_HOST, 0))
    connection.send(listener.getsockname()[1])
    config = uvicorn.Config(
        _send_events, http="httptools", ws="none", lifespan="off", access_log=False, log_config=None
    )
    uvloop.run(uvicorn.Server(config).serve(sockets=[listener]))


async def _send_events(scope: Scope, _receive: Receive, send: Send) -> None:
    """`GET /EVENTS/BYTES` sends so many events of this size."""
    events, size = scope["path"].strip("/").split("/")
    event = b"data: " + b"x" * (int(size) - 8) + b"\n\n"
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(int(events) - 1):
        await send({"type": "http.response.body", "body": event, "more_body": True})
        await asyncio.sleep(_EVERY_S)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


if __name__ == "__main__":
    sys.exit(main())
