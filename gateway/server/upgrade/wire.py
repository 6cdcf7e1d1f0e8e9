"""The channel between two gateways: frames of messages on one socket, descriptors on another."""

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

from gateway.server.upgrade.messages import Told

_LENGTH: Final = struct.Struct(">I")
# Prompts of all requests that wait; more than that is no estate.
_LONGEST_FRAME_BYTES: Final = 1 << 30
# What a peer that doesn't read may have us hold.
_UNREAD_BYTES: Final = 512 << 20
_RECORD: Final = struct.Struct(">4sQ")
_AGAIN_S: Final = 0.005
# macOS may close what is on its way when its sender closes it (Chromium's issue 298276).
_ON_ITS_WAY_S: Final = 1.0 if sys.platform == "darwin" else 0.0

T = TypeVar("T")


class Frames(Generic[T]):
    """Messages to and from the other gateway."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decoder: msgspec.msgpack.Decoder[T],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        # To wait for is that nothing is left.
        writer.transport.set_write_buffer_limits(high=0)
        self._encoder = msgspec.msgpack.Encoder()

    @classmethod
    async def over(cls, connected: socket.socket, decoder: msgspec.msgpack.Decoder[T]) -> Frames[T]:
        connected.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=connected)
        return cls(reader, writer, decoder)

    def send(self, message: Told) -> None:
        """Never waits. Who doesn't read is cut off."""
        if self._writer.is_closing():
            return
        frame = self._encoder.encode(message)
        self._writer.write(_LENGTH.pack(len(frame)) + frame)
        if self._writer.transport.get_write_buffer_size() > _UNREAD_BYTES:
            self._writer.transport.abort()

    async def sent(self) -> None:
        """Wait until all of it has left this process."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def receive(self) -> T | None:
        """The next message; None: the other gateway is gone, or says what none would."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > _LONGEST_FRAME_BYTES:
                return None
            return self._decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError):
            return None

    def close(self) -> None:
        self._writer.close()


class Passage:
    """Descriptors, each with a word of what it is and a number."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._unsent: deque[tuple[bytes, int]] = deque()
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.Handle | None = None
        self._left = asyncio.Event()

    def send(self, what: bytes, number: int, descriptor: int) -> None:
        """Never waits; the descriptor belongs to the passage, which closes it once it has left."""
        self._unsent.append((_RECORD.pack(what, number), descriptor))
        if self._retry is None:
            self._send()

    async def sent(self) -> None:
        """Wait until everything has left."""
        while self._unsent:
            self._left.clear()
            await self._left.wait()

    def watch(self, received: Callable[[bytes, int, int], None]) -> None:
        """Tell of what comes, from now on."""
        self._loop.add_reader(self._socket, self._receive, received)

    def take(self) -> list[tuple[bytes, int, int]]:
        """What has come, at once."""
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
                # Nobody is there any more: whoever waits for that hears it from the frames.
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
