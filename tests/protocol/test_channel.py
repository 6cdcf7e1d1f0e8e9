from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from protocol import channel
from protocol.channel import Keys, connect_worker_side, new_keys
from protocol.message_base import MAX_SOCKET_PATH_BYTES, endpoint
from protocol.messages import MAX_WORKER_FRAME_BYTES
from tests.support.folders import short_folder
from tests.support.strangers import strangers

_PATIENCE_MS = 5000
KEYS = new_keys()


def bind_gateway_side(
    context: zmq.Context[zmq.Socket[bytes]], address: str, keys: Keys
) -> zmq.Socket[bytes]:
    socket = channel.gateway_side(context, keys)
    try:
        socket.bind(address)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket


@pytest.fixture
def folder() -> Iterator[Path]:
    # Short, since the paths of sockets are bounded; pytest's folders are not.
    with short_folder() as path:
        yield Path(path)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    own: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield own
    own.destroy(linger=0)


@pytest.fixture
def gateway_side(context, folder) -> Callable[[], zmq.Socket[bytes]]:
    return lambda: bind_gateway_side(context, endpoint(folder / "0-1.sock"), KEYS)


@pytest.fixture
def worker_side(context, folder) -> Callable[[], zmq.Socket[bytes]]:
    return lambda: connect_worker_side(context, endpoint(folder / "0-1.sock"), KEYS.workers)


def _receive(socket: zmq.Socket[bytes]) -> bytes:
    assert socket.poll(_PATIENCE_MS), "nothing arrived"
    return socket.recv()


def _await_event(monitor: zmq.Socket[bytes], wanted: zmq.Event) -> None:
    while True:
        assert monitor.poll(_PATIENCE_MS), f"no {wanted!r}"
        if recv_monitor_message(monitor)["event"] == wanted:
            return


def test_zeromq_binds_the_longest_path_and_no_longer_one(context, folder):
    room = MAX_SOCKET_PATH_BYTES - len(os.fsencode(folder)) - 1
    bind_gateway_side(context, endpoint(folder / ("x" * room)), KEYS)
    with pytest.raises(zmq.ZMQError):
        bind_gateway_side(context, f"ipc://{folder / ('x' * (room + 1))}", KEYS)


class TestConversation:
    def test_frames_arrive_in_order_in_both_directions(self, gateway_side, worker_side):
        gateway, worker = gateway_side(), worker_side()
        frames = [f"{number}".encode() for number in range(50)]
        for frame in frames:
            gateway.send(frame)
            worker.send(frame)
        assert [_receive(worker) for _ in frames] == frames
        assert [_receive(gateway) for _ in frames] == frames

    def test_a_worker_that_was_there_first_is_heard(self, gateway_side, worker_side):
        worker = worker_side()
        worker.send(b"early")
        assert _receive(gateway_side()) == b"early"

    def test_a_frame_at_the_limit_arrives(self, gateway_side, worker_side):
        gateway, worker = gateway_side(), worker_side()
        worker.send(bytes(MAX_WORKER_FRAME_BYTES))
        assert len(_receive(gateway)) == MAX_WORKER_FRAME_BYTES

    def test_a_frame_over_the_limit_ends_the_connection_and_never_arrives(
        self, gateway_side, worker_side
    ):
        gateway = gateway_side()
        monitor = gateway.get_monitor_socket(zmq.Event.DISCONNECTED)
        worker = worker_side()
        worker.send(b"before")
        worker.send(bytes(MAX_WORKER_FRAME_BYTES + 1))
        worker.send(b"behind it")
        _await_event(monitor, zmq.Event.DISCONNECTED)
        received = [_receive(gateway)]
        while gateway.poll(200):
            received.append(gateway.recv())
        assert received[0] == b"before"
        assert all(len(frame) <= MAX_WORKER_FRAME_BYTES for frame in received)

    def test_a_second_peer_cannot_join(self, gateway_side, worker_side):
        gateway, first = gateway_side(), worker_side()
        first.send(b"first")
        assert _receive(gateway) == b"first"
        intruder = worker_side()
        intruder.send(b"intruder")
        # What the gateway says goes to the first, and it hears nobody else.
        gateway.send(b"for the first")
        first.send(b"still here")
        assert _receive(first) == b"for the first"
        assert _receive(gateway) == b"still here"
        assert not gateway.poll(200)
        assert not intruder.poll(0)

    def test_a_full_queue_is_reported_to_the_sender_and_does_not_block_it(self, gateway_side):
        gateway = gateway_side()
        with pytest.raises(zmq.Again):
            _send_many(gateway, b"nobody reads this", 100_000)

    def test_a_worker_that_floods_holds_a_bounded_number_of_frames(self, gateway_side, worker_side):
        gateway, worker = gateway_side(), worker_side()
        worker.send(b"hello")
        assert _receive(gateway) == b"hello"
        sent = 0
        # Until nothing has moved for a while: ZeroMQ's own thread carries the frames over.
        while sent < 10_000 and worker.poll(300, zmq.POLLOUT):
            worker.send(bytes(1 << 16), zmq.NOBLOCK)
            sent += 1
        # A high-water mark on each side, and what the kernel holds.
        assert sent < 500


class TestStrangers:
    """Who opens the socket without the key."""

    def test_stranger_that_connects_first_takes_no_place(
        self, context, gateway_side, worker_side, folder
    ):
        gateway = gateway_side()
        path = folder / "0-1.sock"
        accepted = gateway.get_monitor_socket(zmq.Event.ACCEPTED)
        with strangers(context, path) as count:
            for _ in range(count):
                _await_event(accepted, zmq.Event.ACCEPTED)
            worker = worker_side()
            worker.send(b"the worker's")
            assert _receive(gateway) == b"the worker's"
            gateway.send(b"the gateway's")
            assert _receive(worker) == b"the gateway's"
            assert not gateway.poll(200)

    def test_a_dead_workers_place_is_not_inherited(
        self, context, gateway_side, worker_side, folder
    ):
        gateway, worker = gateway_side(), worker_side()
        leaving = gateway.get_monitor_socket(zmq.Event.DISCONNECTED)
        worker.send(b"the worker's")
        assert _receive(gateway) == b"the worker's"
        with strangers(context, folder / "0-1.sock"):
            worker.close(linger=0)
            _await_event(leaving, zmq.Event.DISCONNECTED)
            assert not gateway.poll(300)

    def test_a_worker_believes_no_other_gateway(self, context, worker_side, folder):
        path = folder / "0-1.sock"
        impostor = bind_gateway_side(context, endpoint(path), new_keys())
        worker = worker_side()
        worker.send(b"for the gateway's ears", zmq.NOBLOCK)
        assert not impostor.poll(300)
        assert not impostor.poll(0, zmq.POLLOUT)


def _send_many(socket, frame, count):
    for _ in range(count):
        socket.send(frame, zmq.NOBLOCK)


class TestIncarnations:
    def test_unread_frames_vanish_with_the_socket(self, context, folder):
        first_address = endpoint(folder / "0-1.sock")
        first, worker = (
            bind_gateway_side(context, first_address, KEYS),
            connect_worker_side(context, first_address, KEYS.workers),
        )
        worker.send(b"read")
        for _ in range(20):
            worker.send(b"stale")
        assert _receive(first) == b"read"
        first.close()
        second_address = endpoint(folder / "0-2.sock")
        second = bind_gateway_side(context, second_address, KEYS)
        successor = connect_worker_side(context, second_address, KEYS.workers)
        successor.send(b"fresh")
        assert _receive(second) == b"fresh"
        assert not second.poll(200)

    def test_closing_does_not_wait_for_a_dead_peer(self, folder):
        own: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        gateway = bind_gateway_side(own, endpoint(folder / "0-1.sock"), KEYS)
        worker = connect_worker_side(own, endpoint(folder / "0-1.sock"), KEYS.workers)
        worker.send(b"hello")
        assert _receive(gateway) == b"hello"
        worker.close(linger=0)
        with contextlib.suppress(zmq.Again):
            _send_many(gateway, b"nobody reads this", 10)
        gateway.close()
        # Would block for ever with ZeroMQ's default linger.
        own.term()
