"""Decodes the bodies of requests that come compressed (RFC 9110, section 8.4).

A body is decoded in pieces as it is read. So whoever reads the body bounds the decoded bytes, and
other requests are served between two pieces.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Iterator
from typing import Any, Final, Protocol

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.wire.errors import error_response
from gateway.requests.share import Share, share_of
from gateway.system.refusal import Refusal

# A piece of this size is decoded in about a millisecond.
_PIECE_BYTES: Final = 256 << 10
# Over HTTP zstd has windows of 8 MiB at most (RFC 9659).
_ZSTD_WINDOW_BITS: Final = 23
_CODINGS: Final = ("gzip", "deflate", "zstd")


class _Decompressor(Protocol):
    """One compressed stream, with the names of Python's bz2, lzma and zstd modules."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _ZlibStream:
    """zlib's object holds no input back, so its caller has to give the rest again."""

    def __init__(self, window_bits: int) -> None:
        self._object = zlib.decompressobj(window_bits)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._object.eof

    @property
    def unused_data(self) -> bytes:
        return self._object.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._object.decompress(self._object.unconsumed_tail + data, max_length)
        # A full piece may leave output behind that needs no more input.
        self.needs_input = not self._object.unconsumed_tail and len(piece) < max_length
        return piece


def _decompressor_of(coding: str, first: bytes) -> _Decompressor:
    match coding:
        case "gzip":
            return _ZlibStream(16 + zlib.MAX_WBITS)
        case "deflate":
            # Some clients leave zlib's header out. Without one no encoder begins with these bits.
            return _ZlibStream(zlib.MAX_WBITS if first[0] & 0x0F == 8 else -zlib.MAX_WBITS)
        case _:
            zstd = zstd_module()
            bound = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_BITS}
            stream: _Decompressor = zstd.ZstdDecompressor(options=bound)
            return stream


def _error_of(coding: str) -> type[Exception]:
    return zstd_module().ZstdError if coding == "zstd" else zlib.error


def zstd_module() -> Any:
    # Few clients send zstd, so its library is imported for the first one.
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


class _CompressedBody:
    def __init__(self, receive: Receive, coding: str, share: Share) -> None:
        self._receive = receive
        self._coding = coding
        self._share = share
        self._stream: _Decompressor | None = None
        self._pieces: Iterator[bytes] = iter(())
        self._all_came = self._ended = self._goes_on = False

    async def receive(self) -> Message:
        """The next message of the request, with a piece of the decoded body.

        Raises:
            Refusal: the body is not encoded as its header says, or is too large.
        """
        while not self._ended:
            if piece := next(self._pieces, b""):
                self._share.reserve(len(piece))
                await asyncio.sleep(0)
                return {"type": "http.request", "body": piece, "more_body": True}
            if self._all_came:
                if self._stream is not None and not self._stream.eof:
                    raise self._invalid("it is cut off")
                self._ended = True
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._all_came = not message.get("more_body", False)
            self._pieces = self._decode(message.get("body", b""))
        return await self._receive()

    def _decode(self, encoded: bytes) -> Iterator[bytes]:
        came_bytes = len(encoded)
        try:
            while encoded:
                if self._stream is None or self._stream.eof:
                    self._goes_on = self._stream is not None
                    self._stream = _decompressor_of(self._coding, encoded)
                yield self._stream.decompress(encoded, _PIECE_BYTES)
                while not (self._stream.eof or self._stream.needs_input):
                    yield self._stream.decompress(b"", _PIECE_BYTES)
                encoded = self._stream.unused_data if self._stream.eof else b""
        except _error_of(self._coding) as error:
            raise self._invalid(str(error)) from error
        self._share.release_part(came_bytes)

    def _invalid(self, reason: str) -> Refusal:
        if self._goes_on:
            reason = f"something follows its end ({reason})"
        return Refusal(
            "invalid_request_error", f"The body can't be decoded as {self._coding}: {reason}."
        )


class CompressedBodies:
    """Gives the application the decoded bodies of requests, without the headers of their coding."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        named = ",".join(Headers(scope=scope).getlist("content-encoding")).lower().split(",")
        codings = [coding.strip().removeprefix("x-") for coding in named]
        match [name for name in codings if name not in ("", "identity")]:
            case []:
                await self._app(scope, receive, send)
            case [coding] if coding in _CODINGS:
                scope = {**scope, "headers": list(scope["headers"])}
                headers = MutableHeaders(scope=scope)
                del headers["content-encoding"], headers["content-length"]
                body = _CompressedBody(receive, coding, share_of(scope))
                await self._app(scope, body.receive, send)
            case several:
                refusal = Refusal(
                    "unsupported_media_type",
                    f"Content-Encoding is {', '.join(several)[:100]!r}: send the body as one of "
                    f"{', '.join(_CODINGS)}, or as it is.",
                    param="content-encoding",
                )
                await error_response(refusal, scope["path"])(scope, receive, send)
