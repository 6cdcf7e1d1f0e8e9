"""Peers that open a worker's socket although they are not that worker."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import zmq

from protocol.channel import new_keys
from protocol.message_base import endpoint

# What peers of the protocol's older versions, and of no protocol, begin with.
_GREETINGS = (
    b"",
    b"\xff" * 200,
    b"\x01\x00hello",
    b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01\x00",
)


@contextlib.contextmanager
def strangers(
    context: zmq.Context[zmq.Socket[bytes]], path: Path, frame: bytes = b"a stranger's"
) -> Iterator[int]:
    """Connected, as far as they get: bare ones, one that speaks ZeroMQ, one with another key. The
    latter two send a frame. Yields how many there are.
    """
    with contextlib.ExitStack() as stack:
        for greeting in _GREETINGS:
            bare = stack.enter_context(socket.socket(socket.AF_UNIX))
            bare.connect(str(path))
            bare.sendall(greeting)
        for key in (None, new_keys().workers):
            pair = stack.enter_context(context.socket(zmq.PAIR))
            pair.setsockopt(zmq.LINGER, 0)
            if key is not None:
                own_public, own_secret = zmq.curve_keypair()
                pair.setsockopt(zmq.CURVE_SERVERKEY, key)
                pair.setsockopt(zmq.CURVE_PUBLICKEY, own_public)
                pair.setsockopt(zmq.CURVE_SECRETKEY, own_secret)
            pair.connect(endpoint(path))
            with contextlib.suppress(zmq.Again):
                pair.send(frame, zmq.NOBLOCK)
        yield len(_GREETINGS) + 2
