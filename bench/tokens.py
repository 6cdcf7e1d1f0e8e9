"""`python -m bench.tokens`: what a token costs the gateway in processor time.

The gateway streams answers of a model of 2 layers to clients with an API key, with metrics and a
line in the log for each. Beside it, in turn, bare uvicorn streams as many events of the same size
from nowhere: what nobody who serves streams in this way can do without. Time is that of the one
process alone. Both are clocked by their readers: an event comes when the engine has made a step, or
a timer ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from bench import arguments
from bench.load import Address, completion_request
from bench.machine import describe_machine
from bench.model import copy_without_end
from bench.processes import cpu_s
from bench.results import GATEWAY, FailedError
from bench.servers import BulkheadServer
from bench.tiny import build_tiny_model
from gateway.config.model_folders import DEMO_FOLDER

_TARGET_US: Final = 40.0
_HOST: Final = "127.0.0.1"
_PROMPT: Final = "Tell me a story."
_LONGEST_S: Final = 600.0
_IDLE_S: Final = 5.0


class EventCounter(asyncio.Protocol):
    """One answer, of which the events are counted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()
        self.events = 0
        self.bytes = 0
        self._tail = b""

    def data_received(self, data: bytes) -> None:
        self.events += data.count(b"data: ")
        self.bytes += len(data)
        self._tail = (self._tail + data)[-64:]
        if b"[DONE]" in self._tail and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(FailedError(f"A stream broke off ({exc}): {self._tail!r}"))


async def read(address: Address, requests: Sequence[bytes]) -> tuple[int, int]:
    """Send them all and read the answers: how many events and bytes these had."""
    loop = asyncio.get_running_loop()
    streams = []
    transports = []
    for _ in requests:
        transport, stream = await loop.create_connection(lambda: EventCounter(loop), *address)
        transports.append(transport)
        streams.append(stream)
    for transport, request in zip(transports, requests, strict=True):
        transport.write(request)
    async with asyncio.timeout(_LONGEST_S):
        await asyncio.gather(*(each.ended for each in streams))
    for transport in transports:
        transport.close()
    return sum(each.events for each in streams), sum(each.bytes for each in streams)


class UvicornAlone:
    """uvicorn and a function that sends events of one size on a clock."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.bare"], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.address: Address = (_HOST, int(self._process.stdout.readline()))

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def _cost_us(
    pid: int, address: Address, requests: Sequence[bytes], tokens: int
) -> tuple[float, int, int]:
    """Microseconds of this process for each of so many tokens, and the events and bytes sent."""
    before = cpu_s({"it": pid})["it"]
    events, size = uvloop.run(read(address, requests))
    return (cpu_s({"it": pid})["it"] - before) * 1e6 / tokens, events, size


def _new_key(address: Address) -> str:
    """From now on everybody needs one."""
    url = f"http://{address[0]}:{address[1]}/admin/v1/keys"
    body = json.dumps({"name": "bench"}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
        key: str = json.load(answer)["key"]
    return key


def _bare_request(events: int, size: int, every_s: float) -> bytes:
    return f"GET /{events}/{size}/{every_s} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def main() -> int:
    parser = arguments.parser(
        "bench.tokens", __doc__, rounds=5, model=None, shown="2 layers of width 64"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--streams", type=int, default=32, metavar="N")
    parser.add_argument("--tokens", type=int, default=256, metavar="N", help="for each stream")
    parsed = parser.parse_args()
    streams, tokens = parsed.streams, parsed.tokens
    ours: list[float] = []
    bare: list[float] = []
    per_event: list[float] = []
    rates: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bh-") as name:
        folder = Path(name)
        source = parsed.model
        if source is None:
            source = folder / "tiny"
            build_tiny_model(DEMO_FOLDER, source)
        copy_without_end(source, folder / "model")
        gateway = BulkheadServer(folder / "model", folder / "state", folder / "log")
        reference = UvicornAlone()

        def asked(key: str | None) -> list[bytes]:
            return [
                completion_request(
                    gateway.model, f"{number} {_PROMPT}", tokens, {"temperature": 0.0}, key
                )
                for number in range(streams)
            ]

        try:
            uvloop.run(read(gateway.address, asked(None)))
            pid = gateway.processes()[GATEWAY]
            requests = asked(_new_key(gateway.address))
            began = cpu_s({"it": pid})["it"]
            time.sleep(_IDLE_S)
            idle = (cpu_s({"it": pid})["it"] - began) / _IDLE_S
            for _ in range(parsed.rounds):
                began = time.perf_counter()
                cost, events, size = _cost_us(pid, gateway.address, requests, streams * tokens)
                rates.append(streams * tokens / (time.perf_counter() - began))
                ours.append(cost)
                per_event.append(streams * tokens / events)
                each = events // streams
                same = [_bare_request(each, size // events, 1 / 60)] * streams
                bare.append(_cost_us(reference.pid, reference.address, same, streams * tokens)[0])
        finally:
            gateway.stop()
            reference.stop()
    machine = describe_machine()
    print(f"{machine.processor}, {machine.cores} cores, Python {machine.python}; {streams} streams")
    print(f"of {tokens} tokens, medians of {parsed.rounds} rounds\n")
    middle, least = statistics.median(ours), statistics.median(bare)
    ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
    rate, merged = statistics.median(rates), statistics.median(per_event)
    print("| CPU time (µs) | a token | an event |")
    print("| --- | ---: | ---: |")
    print(f"| Bulkhead's gateway | {middle:.1f} | {middle * merged:.1f} |")
    print(f"| of that, what it takes while nobody asks | {1e6 * idle / rate:.1f} | |")
    print(f"| bare uvicorn | {least:.1f} | {least * merged:.1f} |")
    print(f"| ratio | {ratio:.2f} | |")
    print(f"\n{rate:.0f} tokens/s, {merged:.2f} an event. Target: {_TARGET_US:g} µs a token.")
    print(f"Rounds: {', '.join(f'{cost:.1f}' for cost in ours)}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
