"""The messages between two gateways while one replaces the other, and their two sockets: one for
messages, one for descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from gateway.access.limits import Book
from gateway.mailbox.entry import Name
from gateway.models.model_supervisor import ModelState
from gateway.requests.request import RequestState
from gateway.system.events import Event
from gateway.system.refusal import RefusalState
from protocol.answers import Delta, Embedded, Usage
from protocol.message import digest


class HandoverMessage(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of all messages. Each message is sent in a frame of its own."""


# Messages of the successor, before it gets the state


class Introduction(HandoverMessage, frozen=True, tag="introduction"):
    """The successor has read its configuration and is ready. Every version can read this
    message.
    """

    version: str
    protocol: str
    handover: str
    pid: int


class Failure(HandoverMessage, frozen=True, tag="failure"):
    """The successor can't take over, for the `reason`, and ends."""

    reason: str


# Messages of the present gateway


class HandoverState(HandoverMessage, frozen=True, tag="estate"):
    """The state that the successor continues. The workers have moved by now and send nothing.

    `incarnation` is the first number that no worker has had. `book` is the usage of each key, by
    days. `making` names the answers of the mailbox that the present gateway, or one before it,
    still makes. `earlier` is the number of gateways before the present one that still serve
    clients. `away_s` is the `away_s` of the present gateway's `PresentClock`.
    """

    models: tuple[ModelState, ...]
    incarnation: int
    events: tuple[Event, ...]
    book: Book
    making: tuple[Name, ...]
    earlier: int
    away_s: float


class Submitted(HandoverMessage, frozen=True, tag="submitted"):
    """A request that came to the present gateway after it sent its state."""

    number: int
    model: str
    request: RequestState


class Cancelled(HandoverMessage, frozen=True, tag="cancelled"):
    number: int


class Spent(HandoverMessage, frozen=True, tag="spent"):
    """The tokens of an answer of the present gateway, which count for the key `name`."""

    name: str
    usage: Usage


class Released(HandoverMessage, frozen=True, tag="released"):
    """The successor reads the output of this incarnation from now on. `begun` is the part of a line
    that was read already. `incarnation` 0: the present gateway has nothing left but clients.
    """

    incarnation: int
    begun: bytes


class Finished(HandoverMessage, frozen=True, tag="finished"):
    """The present gateway has served its last client."""


# Messages of the successor, once it serves


class Serving(HandoverMessage, frozen=True, tag="serving"):
    """The successor has taken everything over."""


class Began(HandoverMessage, frozen=True, tag="began"):
    """A worker has got the request. Sent again when another worker gets the request."""

    number: int


class Delivered(HandoverMessage, frozen=True, tag="delivered"):
    number: int
    delta: Delta


class VectorsCame(HandoverMessage, frozen=True, tag="vectors"):
    number: int
    part: Embedded


class Refused(HandoverMessage, frozen=True, tag="refused"):
    number: int
    refusal: RefusalState


FromPredecessor: TypeAlias = HandoverState | Submitted | Cancelled | Spent | Released | Finished
FromSuccessor: TypeAlias = (
    Introduction | Failure | Serving | Began | Delivered | VectorsCame | Refused
)

# Raise this, as in `protocol.messages`, when a message changes its meaning but not its fields.
_MEANING: Final = 1
HANDOVER_VERSION: Final = f"{_MEANING}-{digest(FromPredecessor | FromSuccessor)}"


_LENGTH: Final = struct.Struct(">I")
# Room for the prompts of all waiting requests. A longer frame is an error.
_LONGEST_FRAME_BYTES: Final = 1 << 30
# The most bytes that are kept for a gateway that doesn't read.
_UNREAD_BYTES: Final = 512 << 20
_RECORD: Final = struct.Struct(">4sQ")
_AGAIN_S: Final = 0.005
# macOS may close a descriptor in transit when its sender closes it (Chromium's issue 298276).
_ON_ITS_WAY_S: Final = 1.0 if sys.platform == "darwin" else 0.0

T = TypeVar("T")


class MessageChannel(Generic[T]):
    """Sends messages to another gateway, and receives its messages."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decoder: msgspec.msgpack.Decoder[T],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        # With this limit `drain` waits until the buffer is empty.
        writer.transport.set_write_buffer_limits(high=0)
        self._encoder = msgspec.msgpack.Encoder()

    @classmethod
    async def over(
        cls, connected: socket.socket, decoder: msgspec.msgpack.Decoder[T]
    ) -> MessageChannel[T]:
        connected.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=connected)
        return cls(reader, writer, decoder)

    def send(self, message: HandoverMessage) -> None:
        """Send a message without a wait. A gateway that doesn't read is disconnected."""
        if self._writer.is_closing():
            return
        frame = self._encoder.encode(message)
        self._writer.write(_LENGTH.pack(len(frame)) + frame)
        if self._writer.transport.get_write_buffer_size() > _UNREAD_BYTES:
            self._writer.transport.abort()

    async def sent(self) -> None:
        """Wait until all messages have left this process."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def receive(self) -> T | None:
        """The next message; None: the other gateway has ended, or has sent an invalid message."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > _LONGEST_FRAME_BYTES:
                return None
            return self._decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError):
            return None

    def close(self) -> None:
        self._writer.close()


class DescriptorChannel:
    """Sends and receives descriptors, each with a word for its kind and a number."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._unsent: deque[tuple[bytes, int]] = deque()
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.Handle | None = None
        self._left = asyncio.Event()

    def send(self, what: bytes, number: int, descriptor: int) -> None:
        """Send a descriptor without a wait. The channel owns the descriptor, and will close it."""
        self._unsent.append((_RECORD.pack(what, number), descriptor))
        if self._retry is None:
            self._send()

    async def sent(self) -> None:
        """Wait until all descriptors are sent."""
        while self._unsent:
            self._left.clear()
            await self._left.wait()

    def watch(self, received: Callable[[bytes, int, int], None]) -> None:
        """Call `received` for each descriptor from now on."""
        self._loop.add_reader(self._socket, self._receive, received)

    def take(self) -> list[tuple[bytes, int, int]]:
        """The descriptors that have arrived, with their kinds and numbers. Doesn't wait."""
        found: list[tuple[bytes, int, int]] = []
        while True:
            try:
                record, descriptors, _, _ = socket.recv_fds(self._socket, _RECORD.size, 1)
            except BlockingIOError:
                return found
            except OSError:
                record, descriptors = b"", []
            if len(record) != _RECORD.size or not descriptors:
                self._loop.remove_reader(self._socket)
                return found
            what, number = _RECORD.unpack(record)
            os.set_inheritable(descriptors[0], False)
            found.append((what, number, descriptors[0]))

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        while self._unsent:
            os.close(self._unsent.popleft()[1])
        self._left.set()

    def _send(self) -> None:
        self._retry = None
        while self._unsent:
            record, descriptor = self._unsent[0]
            try:
                socket.send_fds(self._socket, [record], [descriptor])
            except BlockingIOError:
                self._retry = self._loop.call_later(_AGAIN_S, self._send)
                return
            except OSError:
                # The other gateway has ended. The channel of messages shows this, too.
                pass
            self._unsent.popleft()
            if _ON_ITS_WAY_S:
                self._loop.call_later(_ON_ITS_WAY_S, os.close, descriptor)
            else:
                os.close(descriptor)
        self._left.set()

    def _receive(self, received: Callable[[bytes, int, int], None]) -> None:
        for each in self.take():
            received(*each)
