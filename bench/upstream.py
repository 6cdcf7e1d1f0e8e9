"""`python -m bench.upstream`: what it costs to reach a gateway through another gateway.

The model is the server of `bench.forward`, and the first gateway serves it. The second gateway has
the first as its upstream. Both gateways get the requests of `bench.forward` in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from typing import Final

import uvloop

from bench.forward import ask, command_table, compare, gateway_with
from bench.machine import describe_machine
from gateway.system.http_client import HttpClient, Server

# Until then the second gateway may take the model for unloaded, as it was when it asked last.
_STALE_S: Final = 5.0


async def _measure(first: int, second: int, second_pid: int, requests: int, rounds: int) -> None:
    """`first` and `second` are the ports of the two gateways."""
    direct, through = (HttpClient(Server("127.0.0.1", port)) for port in (first, second))
    await ask(direct)
    await asyncio.sleep(_STALE_S)
    await ask(through)
    await compare({"directly": direct}, through, second_pid, requests, rounds)


def main() -> int:
    parser = argparse.ArgumentParser("bench.upstream", description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(describe_machine())
    with (
        tempfile.TemporaryDirectory("bulkhead", dir="/tmp") as first_folder,
        tempfile.TemporaryDirectory("bulkhead", dir="/tmp") as second_folder,
        gateway_with(command_table(), first_folder) as (first, _),
        gateway_with(
            f'[upstreams.first]\nurl = "http://127.0.0.1:{first}/v1"\n', second_folder
        ) as (second, second_pid),
    ):
        uvloop.run(_measure(first, second, second_pid, arguments.requests, arguments.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
