"""The ZeroMQ sockets of one incarnation: one endpoint, one pair of peers.

Every incarnation of a worker gets an endpoint of its own. So the frames of an earlier incarnation
vanish with its socket, and a worker that floods fills only its own queue. Every incarnation also
gets a key of its own. ZeroMQ's CURVE handshake fails without the key, so another process that opens
the socket is never heard, and takes no peer's place. CURVE also encrypts, which takes each side
about 1 µs more CPU for a message of one token, and 6 µs for a message of 2 kB.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import zmq

from protocol.messages import MAX_GATEWAY_FRAME_BYTES, MAX_WORKER_FRAME_BYTES

# The most messages in a queue. With the limits of frames they bound the memory that a silent or
# flooding peer costs the other side.
_FROM_WORKER_MESSAGES: Final = 64
_FROM_GATEWAY_MESSAGES: Final = 1024
# The length of a key in ZeroMQ's printable form, Z85 (zmq_curve(7)).
KEY_BYTES: Final = 40
# The bytes that encryption adds to a frame: the command's name, a short nonce, the authenticator
# and the flags (ZMTP's RFC 26, CurveZMQ).
_ENCRYPTION_BYTES: Final = 8 + 8 + 16 + 1

_RECONNECT_MS: Final = 10


class Keys(NamedTuple):
    """The keys of one incarnation, `KEY_BYTES` each. CURVE calls the key `workers` the server's
    public key. Here only the worker gets that key, so a peer that has it is the worker.
    """

    workers: bytes
    gateways: bytes


def new_keys() -> Keys:
    return Keys(*zmq.curve_keypair())


def gateway_side(context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> zmq.Socket[bytes]:
    """The gateway's socket, which isn't bound yet. A PAIR socket takes one peer, once the peer has
    proved that it has the key.
    """
    socket = _pair(context, send=_FROM_GATEWAY_MESSAGES, receive=_FROM_WORKER_MESSAGES)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.gateways)
    # The default linger is infinite: closing would wait for a dead peer.
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_WORKER_FRAME_BYTES + _ENCRYPTION_BYTES)
    return socket


def connect_worker_side(
    context: zmq.Context[zmq.Socket[bytes]], address: str, key: bytes
) -> zmq.Socket[bytes]:
    """The worker's socket, with the key that the gateway has given to the worker."""
    socket = _pair(context, send=_FROM_WORKER_MESSAGES, receive=_FROM_GATEWAY_MESSAGES)
    socket.setsockopt(zmq.CURVE_SERVERKEY, key)
    _take_own_keys(socket)
    # The next gateway may not listen yet.
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    # A second for a last message, such as the reason of a failed load.
    socket.setsockopt(zmq.LINGER, 1000)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_GATEWAY_FRAME_BYTES + _ENCRYPTION_BYTES)
    socket.connect(address)
    return socket


def bind_leader_side(
    context: zmq.Context[zmq.Socket[bytes]], address: str, keys: Keys, silence_s: float
) -> zmq.Socket[bytes]:
    """Rank 0's socket for the channels to its followers, which have the key. ZeroMQ asks each
    follower every second. It disconnects a follower that is silent for `silence_s`, for example
    because its host is gone.
    """
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.gateways)
    # Otherwise a message to a follower that is gone would be lost without an error.
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.SNDTIMEO, int(silence_s * 1000))
    _watch_peer(socket, silence_s)
    try:
        socket.bind(address)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket


def connect_follower_side(
    context: zmq.Context[zmq.Socket[bytes]], address: str, key: bytes, rank: int, silence_s: float
) -> zmq.Socket[bytes]:
    """A follower's socket, with the key that the gateway has given to the follower."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, str(rank).encode())
    socket.setsockopt(zmq.CURVE_SERVERKEY, key)
    _take_own_keys(socket)
    _watch_peer(socket, silence_s)
    socket.connect(address)
    return socket


def _take_own_keys(socket: zmq.Socket[bytes]) -> None:
    """Give the client's socket a pair of keys of its own. CURVE needs them, and no peer checks
    them.
    """
    own_public, own_secret = zmq.curve_keypair()
    socket.setsockopt(zmq.CURVE_PUBLICKEY, own_public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, own_secret)


def _watch_peer(socket: zmq.Socket[bytes], silence_s: float) -> None:
    # A second for a last message, such as the reason of a failed load.
    socket.setsockopt(zmq.LINGER, 1000)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_GATEWAY_FRAME_BYTES + _ENCRYPTION_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(silence_s * 1000))


def _pair(context: zmq.Context[zmq.Socket[bytes]], *, send: int, receive: int) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.SNDHWM, send)
    socket.setsockopt(zmq.RCVHWM, receive)
    return socket
