"""The two sockets between two gateways: one for messages, one for descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from gateway.server.upgrade.messages import HandoverMessage

_LENGTH: Final = struct.Struct(">I")
# Room for the prompts of all waiting requests. A longer frame is an error.
_LONGEST_FRAME_BYTES: Final = 1 << 30
# The most bytes that wait for a gateway that doesn't read.
_UNREAD_BYTES: Final = 512 << 20
_RECORD: Final = struct.Struct(">4sQ")
_AGAIN_S: Final = 0.005
# macOS may close a descriptor on its way when its sender closes it (Chromium's issue 298276).
_TRANSIT_S: Final = 1.0 if sys.platform == "darwin" else 0.0

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
    """Sends and receives descriptors, each with a kind of four letters and a number."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._unsent: deque[tuple[bytes, int]] = deque()
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.Handle | None = None
        self._all_sent = asyncio.Event()

    def send(self, kind: bytes, number: int, descriptor: int) -> None:
        """Send a descriptor without a wait. The channel owns the descriptor, and will close it."""
        self._unsent.append((_RECORD.pack(kind, number), descriptor))
        if self._retry is None:
            self._send()

    async def sent(self) -> None:
        """Wait until all descriptors are sent."""
        while self._unsent:
            self._all_sent.clear()
            await self._all_sent.wait()

    def watch(self, received: Callable[[bytes, int, int], None]) -> None:
        """Call `received` for each descriptor from now on."""
        self._loop.add_reader(self._socket, self._pass_to, received)

    def receive(self) -> list[tuple[bytes, int, int]]:
        """The descriptors that have arrived, with their kinds and numbers. Doesn't wait."""
        arrived: list[tuple[bytes, int, int]] = []
        while True:
            try:
                record, descriptors, _, _ = socket.recv_fds(self._socket, _RECORD.size, 1)
            except BlockingIOError:
                return arrived
            except OSError:
                record, descriptors = b"", []
            if len(record) != _RECORD.size or not descriptors:
                self._loop.remove_reader(self._socket)
                return arrived
            kind, number = _RECORD.unpack(record)
            os.set_inheritable(descriptors[0], False)
            arrived.append((kind, number, descriptors[0]))

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        while self._unsent:
            os.close(self._unsent.popleft()[1])
        self._all_sent.set()

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
            if _TRANSIT_S:
                self._loop.call_later(_TRANSIT_S, os.close, descriptor)
            else:
                os.close(descriptor)
        self._all_sent.set()

    def _pass_to(self, received: Callable[[bytes, int, int], None]) -> None:
        for kind, number, descriptor in self.receive():
            received(kind, number, descriptor)
