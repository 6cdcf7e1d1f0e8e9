"""Clients that leave after three tokens, that stop reading, and that send a byte a second: their
sequences end, and nothing of them stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import psutil
import pytest

from tests.support.edge import shortened
from tests.support.gateway import Gateway, chat_body, eventually
from tests.support.raw_http import post
from tests.support.streams import open_stream

pytestmark = pytest.mark.slow

STORY: Final = "Tell me a story."
CHAT: Final = "/v1/chat/completions"
# What an allocator keeps of what a crowd took.
MOST_GROWTH_BYTES: Final = 24e6
_LONGEST_S: Final = 240.0


class Crowd(NamedTuple):
    vanishing: int
    silent: int
    dripping: int


async def _connected(gateway: Gateway, *, small: bool = False) -> socket.socket:
    url = urlsplit(gateway.url)
    connection = socket.socket()
    connection.setblocking(False)
    if small:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(connection, (url.hostname, url.port))
    return connection


async def _vanish(gateway: Gateway, chance: random.Random) -> None:
    """Read three tokens and go: in order, or as a machine that crashes."""
    loop = asyncio.get_running_loop()
    body = chat_body(STORY, stream=True, max_tokens=2000, ignore_eos=True)
    with contextlib.closing(await _connected(gateway)) as connection:
        await loop.sock_sendall(connection, post(CHAT, body))
        received = b""
        while received.count(b'"content":') < 4:
            part = await loop.sock_recv(connection, 65536)
            assert part, received
            received += part
        if chance.random() < 0.5:
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


async def _stop_reading(gateway: Gateway, _chance: random.Random) -> None:
    """Until the gateway cuts it off. Log probabilities fill what the system holds for it."""
    loop = asyncio.get_running_loop()
    several = {"logprobs": True, "top_logprobs": 20, "ignore_eos": True, "max_tokens": 3500}
    with contextlib.closing(await _connected(gateway, small=True)) as connection:
        await loop.sock_sendall(connection, post(CHAT, chat_body(STORY, stream=True, **several)))
        while _lasts(connection):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


def _lasts(connection: socket.socket) -> bool:
    """Whether the other side has not reset it: without reading, only the system's state tells."""
    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return information[0] == 1  # TCP_ESTABLISHED


async def _drip(gateway: Gateway, chance: random.Random) -> None:
    """A byte a second, of a head or of a body, until the gateway has enough of it."""
    loop = asyncio.get_running_loop()
    whole = post(CHAT, chat_body(STORY, stream=True))
    begun = chance.choice([1, whole.index(b"\r\n\r\n") + 5])
    with contextlib.closing(await _connected(gateway)) as connection:
        with contextlib.suppress(ConnectionError):
            await loop.sock_sendall(connection, whole[:begun])
            for byte in whole[begun:]:
                await loop.sock_sendall(connection, bytes([byte]))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        answer = await loop.sock_recv(connection, 65536)
                        assert answer.startswith(b"HTTP/1.1 408 "), answer
                        return
        pytest.fail("nobody minded")


Client = Callable[[Gateway, random.Random], Coroutine[Any, Any, None]]


async def _attack(gateway: Gateway, crowd: Crowd, chance: random.Random) -> None:
    clients: list[Client] = [
        *[_vanish] * crowd.vanishing,
        *[_stop_reading] * crowd.silent,
        *[_drip] * crowd.dripping,
    ]
    chance.shuffle(clients)
    async with asyncio.timeout(_LONGEST_S), asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client(gateway, chance))


@pytest.mark.parametrize(
    ("crowd", "seconds"),
    [
        pytest.param(Crowd(12, 3, 3), 2.0, id="short"),
        # With the deadlines that are in force.
        pytest.param(Crowd(200, 50, 50), None, id="long", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells a socket's state")
@pytest.mark.timeout(1200)
def test_nothing_of_them_stays(
    crowd: Crowd,
    seconds: float | None,
    start_gateway: Callable[..., Gateway],
    tmp_path: Path,
    tell: Callable[..., None],
    seed: int,
) -> None:
    chance = random.Random(seed)
    environment = {} if seconds is None else shortened(tmp_path / "site", seconds=seconds)
    gateway = start_gateway(environment=environment)
    gateway.load()
    whole = gateway.say(STORY, temperature=0.0, max_tokens=60)
    process = psutil.Process(gateway.pid)
    held, files = [], []
    for _ in range(2):
        other = open_stream(gateway, STORY, temperature=0.0, max_tokens=60)
        asyncio.run(_attack(gateway, crowd, chance))
        assert other.join(_LONGEST_S).text == whole
        eventually(lambda: gateway.model()["active_requests"] + gateway.model()["queue_depth"] == 0)
        eventually(lambda: b"" if _others(process) else True)
        held.append(process.memory_info().rss)
        files.append(process.num_fds())
    assert held[1] - held[0] < MOST_GROWTH_BYTES
    assert files[1] <= files[0] + 1
    assert "Traceback" not in gateway.log
    left = 'outcome="client_left",route="/v1/chat/completions"} '
    counted = gateway.client.get("/metrics").text.split(left)[1].splitlines()[0]
    assert float(counted) == 2 * (crowd.vanishing + crowd.silent)
    tell(clients=2 * sum(crowd), grown_mb=f"{(held[1] - held[0]) / 1e6:.1f}")


def _others(process: psutil.Process) -> int:
    """Connections but for that of who asks."""
    connected = process.net_connections("tcp")
    return sum(pconn.status == psutil.CONN_ESTABLISHED for pconn in connected) - 1
