"""`python -m bench.upstream`: what one more gateway on the way costs.

A gateway has a model, and another gateway has that one as its upstream. Both are asked in turns, as
`bench.forward` asks, whose server the model is.
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

_LOOK_S: Final = 5.0


async def _measure(near: int, far: int, pid: int, requests: int, rounds: int) -> None:
    direct, through = (HttpClient(Server("127.0.0.1", number)) for number in (near, far))
    await ask(direct)
    # So long the list of the upstream may say that the model isn't loaded.
    await asyncio.sleep(_LOOK_S)
    await ask(through)
    await compare({"directly": direct}, through, pid, requests, rounds)


def main() -> int:
    parser = argparse.ArgumentParser("bench.upstream", description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(describe_machine())
    with (
        tempfile.TemporaryDirectory("bulkhead", dir="/tmp") as near_folder,
        tempfile.TemporaryDirectory("bulkhead", dir="/tmp") as far_folder,
        gateway_with(command_table(), near_folder) as (near, _),
        gateway_with(f'[upstreams.near]\nurl = "http://127.0.0.1:{near}/v1"\n', far_folder) as (
            far,
            pid,
        ),
    ):
        uvloop.run(_measure(near, far, pid, arguments.requests, arguments.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
