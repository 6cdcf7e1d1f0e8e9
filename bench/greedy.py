"""`python -m bench.greedy`: gaps between the tokens of some streams beside 300 greedy clients.

Eight streams are read at once: alone, beside clients that ask for much and read all of it, and
beside as many that ask for the same and vanish, read nothing, or send a byte a second
(`bench.greedy_clients`), in turn. The first of the three is what the streams have undisturbed, the
second what a full batch costs whoever is in it.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from bench import arguments
from bench.load import Address, completion_request
from bench.machine import describe_machine
from bench.model import copy_without_end
from bench.results import FailedError
from bench.servers import BulkheadServer
from bench.tiny import build_tiny_model
from gateway.config.model_folders import DEMO_FOLDER

_STREAMS: Final = 8
_TOKENS: Final = 1500
_LONGEST_S: Final = 300.0
# The streams run, and the crowd is there, before anything counts.
_WARM_S: Final = 3.0
# Gaps, below which nothing is said of one in a hundred.
_FEWEST: Final = 500
_TARGET: Final = 2.0
_CASES: Final = ("alone", "polite", "greedy")


class _Timed(asyncio.Protocol):
    """The times at which parts of one answer came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()
        self.times: list[float] = []
        self._tail = b""

    def data_received(self, data: bytes) -> None:
        self.times.append(time.perf_counter())
        self._tail = (self._tail + data)[-64:]
        if b"[DONE]" in self._tail and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(FailedError(f"A stream broke off ({exc}): {self._tail!r}"))


async def _gaps(address: Address, requests: Sequence[bytes]) -> list[float]:
    """In seconds, of all streams, from `_WARM_S` on."""
    loop = asyncio.get_running_loop()
    streams = []
    transports = []
    try:
        for request in requests:
            transport, stream = await loop.create_connection(lambda: _Timed(loop), *address)
            transport.write(request)
            transports.append(transport)
            streams.append(stream)
        begins_at = time.perf_counter() + _WARM_S
        async with asyncio.timeout(_LONGEST_S):
            await asyncio.gather(*(each.ended for each in streams))
    finally:
        for transport in transports:
            transport.close()
    found = []
    for each in streams:
        counted = [at for at in each.times if at >= begins_at]
        found += [after - before for before, after in itertools.pairwise(counted)]
    if len(found) < _FEWEST:
        raise FailedError("The streams ended before much was counted: give them more --tokens.")
    return found


def _gaps_beside(case: str, gateway: BulkheadServer, requests: Sequence[bytes]) -> list[float]:
    if case == "alone":
        return uvloop.run(_gaps(gateway.address, requests))
    host, port = gateway.address
    crowd = ["-m", "bench.greedy_clients", host, str(port), gateway.model, case]
    with subprocess.Popen([sys.executable, *crowd]) as process:
        try:
            return uvloop.run(_gaps(gateway.address, requests))
        finally:
            process.kill()


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def main() -> int:
    parser = arguments.parser(
        "bench.greedy", __doc__, rounds=3, model=None, shown="2 layers of width 64"
    )
    parser.add_argument("--tokens", type=int, default=_TOKENS, metavar="N", help="for each stream")
    parsed = parser.parse_args()
    worst: dict[str, list[float]] = {each: [] for each in _CASES}
    with tempfile.TemporaryDirectory(prefix="bh-") as name:
        folder = Path(name)
        source = parsed.model
        if source is None:
            source = folder / "tiny"
            build_tiny_model(DEMO_FOLDER, source)
        copy_without_end(source, folder / "model")
        gateway = BulkheadServer(folder / "model", folder / "state", folder / "log")
        requests = [
            completion_request(
                gateway.model, f"{number} Tell me a story.", parsed.tokens, {"temperature": 0.0}
            )
            for number in range(_STREAMS)
        ]
        try:
            _gaps_beside("alone", gateway, requests)
            for _ in range(parsed.rounds):
                for case in _CASES:
                    worst[case].append(_p99(_gaps_beside(case, gateway, requests)))
        finally:
            gateway.stop()
    print(f"{describe_machine()}\n")
    print(f"{_STREAMS} streams of {parsed.tokens} tokens, {parsed.rounds} rounds, medians\n")
    print("| beside | p99 of the gaps (ms) | ratio to alone |")
    print("| --- | ---: | ---: |")
    for case in _CASES:
        ratio = statistics.median(a / b for a, b in zip(worst[case], worst["alone"], strict=True))
        print(f"| {case} | {statistics.median(worst[case]) * 1e3:.1f} | {ratio:.2f} |")
    print(f"\nTarget: greedy ones under {_TARGET:g} times alone.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
