"""`python -m bench.greedy`: gaps between the tokens of some streams beside 300 greedy clients.

Eight streams are read at once: alone, beside clients that ask for much and read all of it, and
beside as many that ask for the same and vanish, read nothing, or send a byte a second, in turn. The
first of the three shows the streams undisturbed, the second the cost of a full batch.

Of the 300 clients 200 ask for an answer and vanish after three tokens, 50 ask for a long one and
read none of it, 50 send a byte of their request a second; each comes again when it is through. The
polite ones ask for the same, send it at once and read all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Final

import uvloop

from bench.load import Address, RunningStreams, completion_request
from bench.machine import describe_machine
from bench.models import TINY, endless_model, model_parser
from bench.results import FailedError
from bench.servers import BulkheadServer

_STREAMS: Final = 8
_TOKENS: Final = 1500
# Gaps count from then on: the streams run, and the crowd is there.
_WARM_S: Final = 3.0
# Fewer gaps say nothing about one in a hundred.
_FEWEST: Final = 500
_TARGET: Final = 2.0
_CASES: Final = ("alone", "polite", "greedy")
_VANISHING: Final = 200
_SILENT: Final = 50
_DRIPPING: Final = 50
_STORY: Final = "Tell me a story."
_AGAIN_S: Final = 0.5
_SMALL_BYTES: Final = 4096

Client = Callable[[Address, bytes, bool], Coroutine[None, None, None]]


def main() -> int:
    parser = model_parser(
        "bench.greedy", __doc__, rounds=3, model=None, shown="2 layers of width 64"
    )
    parser.add_argument("--tokens", type=int, default=_TOKENS, metavar="N", help="for each stream")
    parsed = parser.parse_args()
    worst: dict[str, list[float]] = {case: [] for case in _CASES}
    with tempfile.TemporaryDirectory(prefix="bh-") as name:
        folder = Path(name)
        model = endless_model(parsed, folder, TINY)
        gateway = BulkheadServer(model, folder / "state", folder / "log")
        requests = [
            completion_request(
                gateway.model, f"{number} {_STORY}", parsed.tokens, {"temperature": 0.0}
            )
            for number in range(_STREAMS)
        ]
        try:
            _gaps_beside("alone", gateway, requests)
            for _ in range(parsed.rounds):
                for case in _CASES:
                    worst[case].append(_p99(_gaps_beside(case, gateway, requests)))
        except FailedError as error:
            print(f"bench.greedy: {error}", file=sys.stderr)
            return 1
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


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def _gaps_beside(case: str, gateway: BulkheadServer, requests: Sequence[bytes]) -> list[float]:
    if case == "alone":
        return uvloop.run(_gaps(gateway.address, requests))
    context = multiprocessing.get_context("spawn")
    arguments = gateway.address, gateway.model, case == "polite"
    crowd = context.Process(target=_run_crowd, args=arguments, daemon=True)
    crowd.start()
    try:
        return uvloop.run(_gaps(gateway.address, requests))
    finally:
        crowd.kill()
        crowd.join()


async def _gaps(address: Address, requests: Sequence[bytes]) -> list[float]:
    """Seconds between the reads of all streams, from `_WARM_S` on."""
    running = await RunningStreams.open(address, requests)
    begins_at = time.perf_counter() + _WARM_S
    found = []
    for stream in await running.read():
        counted = [moment for moment in stream.times if moment >= begins_at]
        found += [after - before for before, after in itertools.pairwise(counted)]
    if len(found) < _FEWEST:
        raise FailedError("The streams ended before much was counted: give them more --tokens.")
    return found


def _run_crowd(address: Address, model: str, polite: bool) -> None:
    """300 clients, until their process is ended."""
    uvloop.run(_crowd(address, model, polite))


async def _crowd(address: Address, model: str, polite: bool) -> None:
    greedy = {"temperature": 0.0}
    short = completion_request(model, _STORY, 64, greedy)
    # Log probabilities fill the system's buffers of clients that don't read.
    long = completion_request(model, _STORY, 1024, {**greedy, "logprobs": 5})
    clients: list[tuple[Client, bytes]] = [
        *[(_vanish, short)] * _VANISHING,
        *[(_stop_reading, long)] * _SILENT,
        *[(_drip, short)] * _DRIPPING,
    ]
    await asyncio.gather(*(_again(client, address, data, polite) for client, data in clients))


async def _again(client: Client, address: Address, request: bytes, polite: bool) -> None:
    while True:
        with contextlib.suppress(OSError):
            await client(address, request, polite)
        await asyncio.sleep(_AGAIN_S * random.uniform(1.0, 2.0))


async def _vanish(address: Address, request: bytes, polite: bool) -> None:
    reader, writer = await asyncio.open_connection(*address)
    with contextlib.closing(writer):
        writer.write(request)
        events = 0
        while (polite or events < 3) and (part := await reader.read(65536)):
            events += part.count(b"data: ")
            if b"[DONE]" in part:
                return


async def _stop_reading(address: Address, request: bytes, polite: bool) -> None:
    reader, writer = await asyncio.open_connection(*address, limit=_SMALL_BYTES)
    with contextlib.closing(writer):
        writer.write(request)
        if not polite:
            # asyncio itself reads no further than its limit; the gateway cuts it off.
            await writer.wait_closed()
        await _read_all(reader)


async def _drip(address: Address, request: bytes, polite: bool) -> None:
    reader, writer = await asyncio.open_connection(*address)
    with contextlib.closing(writer):
        if polite:
            writer.write(request)
        else:
            for byte in request:
                writer.write(bytes([byte]))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        if await reader.read(65536):
                            return
        await _read_all(reader)


async def _read_all(reader: asyncio.StreamReader) -> None:
    while (part := await reader.read(65536)) and b"[DONE]" not in part:
        pass


if __name__ == "__main__":
    sys.exit(main())
