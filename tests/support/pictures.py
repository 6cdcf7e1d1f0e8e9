"""Pictures for tests, as files' bytes, made without a library."""

from __future__ import annotations

import base64
import struct
import zlib

RED, GREEN, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 0)


def png(colour: tuple[int, int, int], width: int = 100, height: int = 80) -> bytes:
    """One colour all over."""
    row = b"\0" + bytes(colour) * width
    return _png(width, height, zlib.compress(row * height))


def bomb(width: int, height: int) -> bytes:
    """A file of some bytes that says it has so many pixels."""
    return _png(width, height, zlib.compress(bytes(1000)))


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _png(width: int, height: int, compressed: bytes) -> bytes:
    """The chunks that there must be (PNG's specification, 11.2), in RGB with eight bits each."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", compressed), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
