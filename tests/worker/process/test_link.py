"""What a worker says on its way from one gateway to the next: each thing once, and in order."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import channel
from protocol.answers import Rendered
from protocol.channel import Keys, new_keys
from protocol.life import (
    Drain,
    Move,
    Moved,
    Settle,
    Stay,
)
from protocol.message_base import Message, endpoint
from protocol.messages import decode_from_worker, encode
from tests.support.folders import short_folder
from tests.support.gateway import eventually
from worker.process.gateway import GatewayLink

# Together more than the system and ZeroMQ take while nobody reads.
MANY = 400
LARGE_BYTES = 1 << 14


class Bench:
    """A worker's end, and one gateway after the other; `heard` is what all of them were told."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[int] = []
        self._folder = folder
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._numbers = itertools.count()
        self._gateways = itertools.count()
        self.gateway, address, keys = self._listen()
        self.link = GatewayLink(address, keys.workers)

    def close(self) -> None:
        self._context.destroy(linger=0)
        self.link.close()

    def say(self, times: int = 1, size_bytes: int = 0) -> None:
        for _ in range(times):
            number = f"{next(self._numbers)}"
            self.link.send(Rendered(request_id=number, token_ids=bytes(size_bytes), last=True))

    def order_move(self) -> zmq.Socket[bytes]:
        """Where the next gateway listens."""
        following, address, keys = self._listen()
        self.gateway.send(encode(Move(address=address, key=keys.workers, parent=os.getpid())))
        return following

    def move(self) -> zmq.Socket[bytes]:
        """The worker has said its last word to the present gateway."""
        following = self.order_move()
        eventually(lambda: isinstance(self.hear(), Moved), every_s=0.0)
        return following

    def stay(self) -> None:
        # What comes behind it shows that it was read.
        self.gateway.send(encode(Stay()))
        self.gateway.send(encode(Drain()))
        assert isinstance(eventually(self.link.receive, every_s=0.0), Drain)

    def switch(self, following: zmq.Socket[bytes]) -> None:
        following.send(encode(Settle()))
        assert eventually(self.link.switch_gateway, every_s=0.0) == os.getpid()
        self.gateway = following

    def hear(self) -> Message | None:
        """The next word, if there is one."""
        self.link.wait(0.0)
        self.link.send_unsent()
        assert self.link.receive() is None
        if not self.gateway.poll(10):
            return None
        message = decode_from_worker(self.gateway.recv())
        if isinstance(message, Rendered):
            self.heard.append(int(message.request_id))
        return message

    def hear_all(self) -> list[int]:
        messages = next(self._numbers)
        eventually(lambda: self.hear() is None and len(self.heard) >= messages, every_s=0.0)
        return list(range(messages))

    def _listen(self) -> tuple[zmq.Socket[bytes], str, Keys]:
        keys = new_keys()
        address = endpoint(self._folder / f"0-{next(self._gateways)}.sock")
        socket = channel.gateway_side(self._context, keys)
        socket.bind(address)
        return socket, address, keys


@pytest.fixture
def bench() -> Iterator[Bench]:
    with short_folder() as folder:
        made = Bench(Path(folder))
        yield made
        made.close()


@settings(max_examples=20)
@given(st.lists(st.sampled_from(["stays", "settles"]), max_size=5))
def test_no_message_is_lost_or_sent_twice(ways: list[Literal["stays", "settles"]]) -> None:
    with short_folder() as folder:
        bench = Bench(Path(folder))
        for way in ways:
            bench.say(2)
            following = bench.move()
            bench.say(2)
            assert bench.link.unsent == 2
            if way == "stays":
                bench.stay()
            else:
                bench.switch(following)
            bench.say()
        messages = bench.hear_all()
        assert bench.heard == messages
        bench.close()


def test_unread_messages_go_to_their_gateway_alone(bench: Bench) -> None:
    bench.say(MANY, LARGE_BYTES)
    assert bench.link.unsent
    following = bench.order_move()
    assert eventually(lambda: bench.link.receive() is None and not bench.link.unsent)
    bench.say()
    assert not following.poll(0)
    eventually(lambda: isinstance(bench.hear(), Moved), every_s=0.0)
    assert bench.heard == list(range(MANY))
    bench.switch(following)
    messages = bench.hear_all()
    assert bench.heard == messages


def test_unread_messages_come_first_if_the_worker_stays(bench: Bench) -> None:
    bench.say(MANY, LARGE_BYTES)
    bench.order_move()
    assert eventually(lambda: bench.link.receive() is None and not bench.link.unsent)
    bench.say()
    bench.stay()
    assert bench.link.unsent
    messages = bench.hear_all()
    assert bench.heard == messages


def test_a_second_order_to_move_takes_the_place_of_the_first(bench: Bench) -> None:
    bench.say(MANY, LARGE_BYTES)
    bench.order_move()
    assert eventually(lambda: bench.link.receive() is None and not bench.link.unsent)
    bench.say()
    following = bench.order_move()
    for _ in range(2):
        eventually(lambda: isinstance(bench.hear(), Moved), every_s=0.0)
    bench.switch(following)
    bench.say()
    messages = bench.hear_all()
    assert bench.heard == messages


def test_the_next_gateway_must_settle_first(bench: Bench) -> None:
    following = bench.move()
    following.send(encode(Drain()))
    with pytest.raises(RuntimeError, match="before it had settled"):
        eventually(bench.link.switch_gateway)
