"""The ZeroMQ sockets of one incarnation: one endpoint, one pair of peers.

Every incarnation of a worker gets an endpoint of its own, so frames of an earlier one vanish with
its socket, and a worker that floods fills only its own queue. It also gets a key of its own:
ZeroMQ's CURVE handshake fails without it, so whoever else opens the socket is never heard, and
takes nobody's place. Encryption comes with it: about 1 µs more CPU on each side for a message of
one token, 6 µs for one of 2 kB.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import zmq

from protocol.messages import MAX_GATEWAY_FRAME_BYTES, MAX_WORKER_FRAME_BYTES

# With the frame limits these bound what a silent or flooding peer can make the other side hold.
_FROM_WORKER_MESSAGES: Final = 64
_FROM_GATEWAY_MESSAGES: Final = 1024
# Of a key in ZeroMQ's printable form, Z85 (zmq_curve(7)).
KEY_BYTES: Final = 40
# What encryption adds to a frame: the command's name, a short nonce, the authenticator and the
# flags (ZMTP's RFC 26, CurveZMQ).
_ENCRYPTION_BYTES: Final = 8 + 8 + 16 + 1

_RECONNECT_MS: Final = 10


class Keys(NamedTuple):
    """Of one incarnation, `KEY_BYTES` each. CURVE calls the first one the server's public key; here
    it is told to nobody but the worker, which is what proves that a peer is the worker.
    """

    workers: bytes
    gateways: bytes


def new_keys() -> Keys:
    return Keys(*zmq.curve_keypair())


def gateway_side(context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> zmq.Socket[bytes]:
    """The gateway's end before it is bound. PAIR takes a single peer, once it has proved that it
    has the key.
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
    """The worker's end, with the key that the gateway has given it."""
    socket = _pair(context, send=_FROM_WORKER_MESSAGES, receive=_FROM_GATEWAY_MESSAGES)
    socket.setsockopt(zmq.CURVE_SERVERKEY, key)
    # CURVE wants a pair of the client's too; nobody asks for it.
    own_public, own_secret = zmq.curve_keypair()
    socket.setsockopt(zmq.CURVE_PUBLICKEY, own_public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, own_secret)
    # The next gateway may not listen yet.
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    # Long enough for a last word, such as why a load failed.
    socket.setsockopt(zmq.LINGER, 1000)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_GATEWAY_FRAME_BYTES + _ENCRYPTION_BYTES)
    socket.connect(address)
    return socket


def bind_leader_side(
    context: zmq.Context[zmq.Socket[bytes]], address: str, keys: Keys, silence_s: float
) -> zmq.Socket[bytes]:
    """Rank 0's end of the channels to its followers, who have the key. Who is silent for so long is
    disconnected, be it that its host is gone: ZeroMQ asks every second.
    """
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.gateways)
    # Else what is told to nobody would be lost without a word.
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
    """A follower's end."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, str(rank).encode())
    socket.setsockopt(zmq.CURVE_SERVERKEY, key)
    own_public, own_secret = zmq.curve_keypair()
    socket.setsockopt(zmq.CURVE_PUBLICKEY, own_public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, own_secret)
    _watch_peer(socket, silence_s)
    socket.connect(address)
    return socket


def _watch_peer(socket: zmq.Socket[bytes], silence_s: float) -> None:
    # A last word, such as why a load failed, has a second.
    socket.setsockopt(zmq.LINGER, 1000)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_GATEWAY_FRAME_BYTES + _ENCRYPTION_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(silence_s * 1000))


def _pair(context: zmq.Context[zmq.Socket[bytes]], *, send: int, receive: int) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.SNDHWM, send)
    socket.setsockopt(zmq.RCVHWM, receive)
    return socket
