"""The ZeroMQ sockets of one incarnation: one endpoint, one pair of peers.

Every incarnation of a worker gets an endpoint of its own, so frames of an earlier one vanish with
its socket, and a worker that floods fills only its own queue.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import zmq

from protocol.codec import MAX_GATEWAY_FRAME_BYTES, MAX_WORKER_FRAME_BYTES

# sizeof(sockaddr_un.sun_path) less the terminating zero: <sys/un.h> of either system.
MAX_SOCKET_PATH_BYTES: Final = 103 if sys.platform == "darwin" else 107

# With the frame limits these bound what a silent or flooding peer can make the other side hold.
_FROM_WORKER_MESSAGES: Final = 64
_FROM_GATEWAY_MESSAGES: Final = 1024


class EndpointError(Exception):
    """The endpoint's path can't be a Unix socket."""


def endpoint(path: Path) -> str:
    """The ZeroMQ address of a socket file.

    Raises:
        EndpointError: the path is longer than the system allows.
    """
    length = len(str(path).encode())
    if length > MAX_SOCKET_PATH_BYTES:
        raise EndpointError(
            f"the socket path {path} has {length} bytes, the system allows "
            f"{MAX_SOCKET_PATH_BYTES}: choose a shorter state folder"
        )
    return f"ipc://{path}"


def bind_gateway_side(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    """The gateway's end. PAIR takes a single peer, so nobody else can join the conversation."""
    socket = _pair(context, send=_FROM_GATEWAY_MESSAGES, receive=_FROM_WORKER_MESSAGES)
    # The default linger is infinite: closing would wait for a dead peer.
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_WORKER_FRAME_BYTES)
    try:
        socket.bind(address)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket


def connect_worker_side(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    """The worker's end."""
    socket = _pair(context, send=_FROM_WORKER_MESSAGES, receive=_FROM_GATEWAY_MESSAGES)
    # Long enough for a last word, such as why a load failed.
    socket.setsockopt(zmq.LINGER, 1000)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_GATEWAY_FRAME_BYTES)
    socket.connect(address)
    return socket


def _pair(context: zmq.Context[zmq.Socket[bytes]], *, send: int, receive: int) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.SNDHWM, send)
    socket.setsockopt(zmq.RCVHWM, receive)
    return socket
