"""The gateway's end of the channel to one incarnation, on the event loop, with a bound on how much
a worker may send.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from protocol.channel import Keys, gateway_side, new_keys
from protocol.message import Message, endpoint
from protocol.messages import (
    ProtocolError,
    WorkerMessage,
    decode_from_worker,
    encode,
)

# An engine sends one message a step, and no model makes a thousand steps a second.
MESSAGES_PER_S: Final = 5000
# The longest thing that it has to say is prompts, four bytes a token.
BYTES_PER_S: Final = 64_000_000


class FloodGauge:
    """Counts what one worker sends within each second."""

    def __init__(self) -> None:
        self._window_began = float("-inf")
        self._messages = 0
        self._bytes = 0

    def count(self, now: float, size_bytes: int) -> str | None:
        """Note a message; what is wrong if it is one too many."""
        if now - self._window_began >= 1.0:
            self._window_began = now
            self._messages = self._bytes = 0
        self._messages += 1
        self._bytes += size_bytes
        if self._messages > MESSAGES_PER_S:
            return f"more than {MESSAGES_PER_S} messages within a second"
        if self._bytes > BYTES_PER_S:
            return f"more than {BYTES_PER_S // 1_000_000} MB of messages within a second"
        return None


# Who floods gets this many messages read before everybody else has a turn.
_MESSAGES_PER_TURN: Final = 32


class Link:
    """Reads without a task: ZeroMQ's descriptor wakes a callback that drains the socket.

    Awaiting each message costs ten times as much (one future and one poll a message). The
    descriptor is edge-triggered: it says only that something changed, so after every turn, and
    after every send, the socket is asked whether there is more (zmq_getsockopt(3), ZMQ_FD).
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        path: Path,
        on_message: Callable[[WorkerMessage], None],
        on_garbage: Callable[[ProtocolError], None],
        on_disconnect: Callable[[], None],
        keys: Keys | None = None,
        on_connect: Callable[[], None] | None = None,
    ) -> None:
        """Bind the endpoint; `key` is for the worker alone. Raises OSError if that can't be. A
        worker that another gateway has had knows its `keys` already.

        `on_garbage` gets what is wrong with a frame that is no message, or is one of a flood;
        nothing is read after it. A disconnection is also how ZeroMQ answers a frame over the size
        limit; what arrived before it has been delivered. Of others that come and go without the key
        nothing is told.
        """
        self._path = path
        self.address = endpoint(path)
        keys = keys or new_keys()
        self.key = keys.workers
        try:
            self._socket = gateway_side(context, keys)
            try:
                # Before somebody can come: a worker that is handed over tries all the time.
                self._monitor = self._socket.get_monitor_socket(
                    zmq.Event.ACCEPTED | zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED
                )
                try:
                    self._socket.bind(self.address)
                except zmq.ZMQError:
                    self._socket.disable_monitor()
                    self._monitor.close(linger=0)
                    raise
            except zmq.ZMQError:
                self._socket.close()
                raise
        except zmq.ZMQError as error:
            self._unlink()
            # It stands for an errno: no descriptors left, for one.
            raise OSError(error.errno, f"{path}: {error.strerror}") from error
        self._on_message = on_message
        self._on_garbage = on_garbage
        self._on_disconnect = on_disconnect
        self._on_connect = on_connect
        self._flood = FloodGauge()
        self._loop = asyncio.get_running_loop()
        # Descriptors of all that are connected; which of them is the worker isn't told.
        self._peers: set[int] = set()
        try:
            self._loop.add_reader(self._socket.FD, self._read)
            self._loop.add_reader(self._monitor.FD, self._watch)
        except OSError:
            self._close_sockets()
            raise
        self._connected = False
        self._open = True
        self._reading = True
        # The first edge comes only after the first look.
        self._loop.call_soon(self._read)
        self._loop.call_soon(self._watch)

    @property
    def connected(self) -> bool:
        """The worker has proved itself, and may still be there."""
        return self._connected

    def send(self, message: Message) -> bool:
        """Queue a message; False if the worker has stopped reading, or the socket is broken.

        Raises:
            ProtocolError: it is larger than a worker takes.
        """
        if not self._open:
            return False
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        self._loop.call_soon(self._read)
        return True

    def close(self) -> None:
        """Forget the incarnation: unread frames and the socket file go with it."""
        if not self._open:
            return
        self._open = self._reading = False
        self._close_sockets()

    def _close_sockets(self) -> None:
        self._loop.remove_reader(self._socket.FD)
        self._loop.remove_reader(self._monitor.FD)
        # The end of a worker must not depend on that of its link.
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._unlink()

    def _unlink(self) -> None:
        # ZeroMQ does it too, but in a thread of its own, and not after every failure.
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        for _ in range(_MESSAGES_PER_TURN):
            if not self._read_one():
                return
        self._loop.call_soon(self._read)

    def _read_one(self) -> bool:
        if not self._reading:
            return False
        try:
            frame = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return False
        if (excess := self._flood.count(self._loop.time(), len(frame))) is not None:
            self._give_up(ProtocolError(excess))
            return False
        try:
            message = decode_from_worker(frame)
        except ProtocolError as error:
            self._give_up(error)
            return False
        try:
            self._on_message(message)
        except Exception as error:
            # Nothing wakes whoever leaves messages unread.
            self._loop.call_exception_handler(
                {"message": "A worker's message failed", "exception": error}
            )
        return True

    def _give_up(self, error: ProtocolError) -> None:
        # What follows can't be trusted either.
        self._reading = False
        self._on_garbage(error)

    def _watch(self) -> None:
        for _ in range(_MESSAGES_PER_TURN):
            if not self._open:
                return
            try:
                told = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            except zmq.Again:
                return
            match told["event"]:
                case zmq.Event.ACCEPTED:
                    self._peers.add(told["value"])
                case zmq.Event.HANDSHAKE_SUCCEEDED:
                    if self._connected:
                        # It connects anew: its first connection is broken.
                        self._disconnected()
                    self._connected = True
                    if self._on_connect is not None:
                        self._on_connect()
                case zmq.Event.DISCONNECTED:
                    self._peers.discard(told["value"])
                    if self._connected and not self._peers:
                        self._disconnected()
        self._loop.call_soon(self._watch)

    def _disconnected(self) -> None:
        self._connected = False
        # At most a high-water mark of frames is left.
        while self._read_one():
            pass
        self._on_disconnect()
