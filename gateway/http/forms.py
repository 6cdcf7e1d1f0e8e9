"""A multipart form that is passed on while it comes. Only its beginning is held, up to the field
that names the model.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from gateway.http.bodies import MAX_BODY_BYTES
from gateway.http.errors import invalid
from gateway.requests.share import share_of
from gateway.system.refusal import Refusal

# An hour of sound without compression is 0.6 GB.
MOST_BYTES: Final = 1 << 30
_BOUNDARY: Final = re.compile(r'multipart/form-data\s*;.*boundary=("?)([^";]{1,70})\1', re.I)
_LONGEST_NAME: Final = 1000
_MODEL: Final = re.compile(rb'content-disposition:[^\r\n]*[;\s]name="?model"?\s*(;|\r\n|$)', re.I)


class Form:
    """The form in the body of a request. `whole` is set when all of it has been read."""

    def __init__(self, http: HttpRequest) -> None:
        """Raises: Refusal: the body is no form, or says that it is too large."""
        found = _BOUNDARY.match(http.headers.get("content-type", ""))
        if found is None:
            raise invalid(
                "The body is no form: send multipart/form-data with its boundary.", "Content-Type"
            )
        self._delimiter = b"--" + found[2].encode("latin-1")
        declared = http.headers.get("content-length", "")
        self._length = int(declared) if declared.isdecimal() else None
        if self._length is not None and self._length > MOST_BYTES:
            raise _too_large()
        self._stream = http.stream()
        self._share = share_of(http.scope)
        self._held = bytearray()
        self._span = (0, 0)
        self.whole = asyncio.Event()

    async def model(self) -> str:
        """The value of the field `model`. Reads only as far as that.

        Raises:
            Refusal: there is no such field, or it comes too late.
        """
        begin = 0
        while True:
            begin, value = self._look(begin)
            if value is not None:
                self._span = value
                text = bytes(self._held[value[0] : value[1]])
                if len(text) > _LONGEST_NAME:
                    raise invalid("model: the name is too long.", "model")
                return text.decode("utf-8", "replace").strip()
            if len(self._held) > MAX_BODY_BYTES:
                raise invalid(
                    f"The form's field model comes after more than {MAX_BODY_BYTES >> 20} MiB: "
                    "send it first.",
                    "model",
                )
            try:
                piece = await anext(self._stream)
            except StopAsyncIteration:
                raise invalid("The form has no field model.", "model") from None
            except ClientDisconnect:
                raise Refusal(
                    "invalid_request_error", "The client left before its body ended."
                ) from None
            self._held += piece

    def _look(self, begin: int) -> tuple[int, tuple[int, int] | None]:
        """Look for the field among the parts from `begin` on, where a delimiter stands. Returns
        where to go on, and the place of the value if it has come as a whole.
        """
        held, delimiter = self._held, self._delimiter
        while True:
            head = held.find(b"\r\n\r\n", begin)
            if head < 0:
                return begin, None
            end = held.find(b"\r\n" + delimiter, head + 2)
            if end < 0:
                return begin, None
            if _MODEL.search(bytes(held[begin : head + 2])):
                return begin, (head + 4, max(head + 4, end))
            begin = end + 2

    def length(self, model: str) -> int | None:
        """The length of the body with this model in place of the client's; None: unknown."""
        if self._length is None:
            return None
        begin, end = self._span
        return self._length + len(model.encode()) - (end - begin)

    async def body(self, model: str) -> AsyncGenerator[bytes]:
        """The whole body, with this model in place of the client's.

        Raises:
            Refusal: the body is too large.
            ClientDisconnect: the client left.
        """
        begin, end = self._span
        passed_bytes = len(self._held)
        held, self._held = bytes(self._held), bytearray()
        yield held[:begin] + model.encode() + held[end:]
        self._share.pass_on(passed_bytes)
        async for piece in self._stream:
            passed_bytes += len(piece)
            if passed_bytes > MOST_BYTES:
                raise _too_large()
            if piece:
                yield piece
                self._share.pass_on(len(piece))
        self.whole.set()


def _too_large() -> Refusal:
    return Refusal(
        "request_too_large",
        f"The form is larger than {MOST_BYTES >> 20} MiB, the largest that is passed on.",
    )
