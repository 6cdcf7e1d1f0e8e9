"""The gateway's end of the channel to one incarnation, on the event loop, with a bound on how much
a worker may send.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final, Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from protocol.channel import Keys, gateway_side, new_keys
from protocol.message_base import Message, endpoint
from protocol.messages import ProtocolError, WorkerMessage, decode_from_worker, encode

# An engine sends one message a step, and no model makes a thousand steps a second.
MESSAGES_PER_S: Final = 5000
# The longest messages of a worker are rendered prompts, with four bytes for each token.
BYTES_PER_S: Final = 64_000_000


class FloodGauge:
    """Counts the messages and bytes that one worker sends within each second."""

    def __init__(self) -> None:
        self._window_began = float("-inf")
        self._messages = 0
        self._bytes = 0

    def count(self, now: float, size_bytes: int) -> str | None:
        """Count a message. Returns which bound the worker has exceeded, or None."""
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


# So many messages of one worker are read before the event loop turns to its other work.
_MESSAGES_PER_TURN: Final = 32


class LinkOwner(Protocol):
    """Receives all that happens on a link."""

    def link_received(self, message: WorkerMessage) -> None: ...

    def link_broke(self, error: ProtocolError) -> None:
        """A frame was no message, or exceeded a bound. The link reads no frame after it."""

    def link_connected(self) -> None:
        """The worker has connected, and has proved itself by its key. Connections of other peers
        aren't reported.
        """

    def link_disconnected(self) -> None:
        """The worker has disconnected, and all its earlier messages were delivered. ZeroMQ also
        disconnects a worker that sends a frame over the size limit.
        """


class Link:
    """The link to one worker. It reads without a task: ZeroMQ's descriptor wakes a callback that
    drains the socket.

    To await each message would cost ten times as much (one future and one poll for each). The
    descriptor is edge-triggered: it says only that something changed. So the link looks for more
    messages after every turn of reading, and after every send (zmq_getsockopt(3), ZMQ_FD).
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        path: Path,
        owner: LinkOwner,
        keys: Keys | None = None,
    ) -> None:
        """Bind the endpoint at `path`. `keys` are those of a worker that an earlier gateway hands
        over; None: make new keys. The attribute `key` is the secret of the worker.

        Raises:
            OSError: the endpoint can't be bound.
        """
        self._path = path
        self.address = endpoint(path)
        keys = keys or new_keys()
        self.key = keys.workers
        self._owner = owner
        self._flood = FloodGauge()
        self._loop = asyncio.get_running_loop()
        # Descriptors of all connected peers. ZeroMQ doesn't tell which of them is the worker.
        self._peers: set[int] = set()
        self._connected = False
        try:
            self._socket = gateway_side(context, keys)
            self._monitor = self._bound()
        except zmq.ZMQError as error:
            self._unlink()
            # A ZMQError has the errno of its cause, such as a lack of descriptors.
            raise OSError(error.errno, f"{path}: {error.strerror}") from error
        try:
            self._loop.add_reader(self._socket.FD, self._read)
            self._loop.add_reader(self._monitor.FD, self._watch)
        except OSError:
            self._close_sockets()
            raise
        self._open = True
        self._reading = True
        # ZeroMQ signals a descriptor only after a first look at the socket.
        self._loop.call_soon(self._read)
        self._loop.call_soon(self._watch)

    def _bound(self) -> zmq.Socket[bytes]:
        """Bind the socket. Returns its monitor socket, which reports connections."""
        try:
            # The monitor comes first: a worker that is handed over tries to connect all the time,
            # so it may do so as soon as the socket is bound.
            monitor = self._socket.get_monitor_socket(
                zmq.Event.ACCEPTED | zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED
            )
            try:
                self._socket.bind(self.address)
            except zmq.ZMQError:
                self._socket.disable_monitor()
                monitor.close(linger=0)
                raise
        except zmq.ZMQError:
            self._socket.close()
            raise
        return monitor

    @property
    def connected(self) -> bool:
        """Whether the worker has connected with its key, and hasn't disconnected since."""
        return self._connected

    def send(self, message: Message) -> bool:
        """Queue a message. Returns False if the worker has stopped reading, or the socket is closed
        or broken.

        Raises:
            ProtocolError: the message is larger than a worker takes.
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
        """Close the link. Unread frames are lost, and the socket file is removed."""
        if not self._open:
            return
        self._open = self._reading = False
        self._close_sockets()

    def _close_sockets(self) -> None:
        self._loop.remove_reader(self._socket.FD)
        self._loop.remove_reader(self._monitor.FD)
        # A failure here must not hold up the end of the worker.
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._unlink()

    def _unlink(self) -> None:
        # ZeroMQ removes the file too, but in another thread, and not after every failure.
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
            self._owner.link_received(message)
        except Exception as error:
            # The messages behind this one have to be read now: no edge follows for them.
            self._loop.call_exception_handler(
                {"message": "A worker's message failed", "exception": error}
            )
        return True

    def _give_up(self, error: ProtocolError) -> None:
        # Later frames can't be trusted either.
        self._reading = False
        self._owner.link_broke(error)

    def _watch(self) -> None:
        for _ in range(_MESSAGES_PER_TURN):
            if not self._open:
                return
            try:
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            except zmq.Again:
                return
            match event["event"]:
                case zmq.Event.ACCEPTED:
                    self._peers.add(event["value"])
                case zmq.Event.HANDSHAKE_SUCCEEDED:
                    if self._connected:
                        # The worker connects anew: its first connection is broken.
                        self._disconnected()
                    self._connected = True
                    self._owner.link_connected()
                case zmq.Event.DISCONNECTED:
                    self._peers.discard(event["value"])
                    if self._connected and not self._peers:
                        self._disconnected()
        self._loop.call_soon(self._watch)

    def _disconnected(self) -> None:
        self._connected = False
        # The socket holds no more frames than its high-water mark, so this ends soon.
        while self._read_one():
            pass
        self._owner.link_disconnected()
