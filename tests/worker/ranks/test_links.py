"""Rank 0's channels with followers that are threads here, on real sockets, and strangers beside."""

from __future__ import annotations

import contextlib
import queue
import socket
from collections.abc import Iterator

import pytest
import zmq

from protocol.channel import connect_follower_side, new_keys
from protocol.life import Ranks
from tests.support.ports import free_port
from worker.ranks.links import FollowerReady, LeaderLink, encode

VERSIONS = {"mlx": "1"}
LONG_S = 60.0


class Followers:
    """`lost` gets the ranks that rank 0 misses."""

    def __init__(self) -> None:
        self.lost: queue.Queue[int] = queue.Queue()
        self.port = free_port()
        keys = new_keys()
        self._key = keys.workers
        self._context = zmq.Context[zmq.Socket[bytes]]()
        ranks = Ranks(
            size=3,
            backend="ring",
            split="tensor",
            addresses=(),
            endpoint=self._address,
            keys=tuple(keys),
            silence_s=LONG_S,
        )
        self.link = LeaderLink(ranks, self.lost.put)

    @property
    def _address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def join(self, rank: int) -> zmq.Socket[bytes]:
        follower = connect_follower_side(self._context, self._address, self._key, rank, LONG_S)
        follower.send(encode(FollowerReady(VERSIONS)))
        return follower

    def close(self) -> None:
        self.link.close()
        self._context.destroy(linger=0)


@pytest.fixture
def followers() -> Iterator[Followers]:
    followers = Followers()
    yield followers
    followers.close()


def test_lost_follower_is_missed_beside_strangers(followers: Followers) -> None:
    with contextlib.ExitStack() as stack:

        def stranger() -> None:
            address = ("127.0.0.1", followers.port)
            connection = stack.enter_context(socket.create_connection(address, LONG_S))
            # ZeroMQ's greeting: it has been accepted.
            assert connection.recv(1)

        for _ in range(5):
            stranger()
        joined = [followers.join(1), followers.join(2)]
        followers.link.gather(VERSIONS, lambda: False)
        for _ in range(5):
            stranger()
        joined[1].close(linger=0)
        assert followers.lost.get(timeout=LONG_S) == 2


def test_strangers_that_go_are_not_missed(followers: Followers) -> None:
    """Those that were there before, whose descriptors followers have now, among them."""
    address = ("127.0.0.1", followers.port)
    for _ in range(5):
        with socket.create_connection(address, LONG_S) as connection:
            assert connection.recv(1)
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
    joined = [followers.join(1), followers.join(2)]
    followers.link.gather(VERSIONS, lambda: False)
    for _ in range(5):
        with socket.create_connection(address, LONG_S) as connection:
            assert connection.recv(1)
    joined[0].close(linger=0)
    assert followers.lost.get(timeout=LONG_S) == 1
    assert followers.lost.empty()
