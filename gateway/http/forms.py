"""A multipart form that is passed on while it comes. Only its beginning is held, up to the field
that names the model; the rest is checked as it passes, since it must not name another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from gateway.http.bodies import MAX_BODY_BYTES
from gateway.http.errors import invalid
from gateway.http.form_parts import FormParts, boundary_of
from gateway.requests.share import share_of
from gateway.system.refusal import Refusal

# An hour of sound without compression is 0.6 GB.
MOST_BYTES: Final = 1 << 30
_LONGEST_NAME: Final = 1000


class Form:
    """The form in the body of a request. `whole` is set when all of it has been read."""

    def __init__(self, http: HttpRequest) -> None:
        """Raises: Refusal: the body is no form, or says that it is too large."""
        self._parts = FormParts(boundary_of(http.headers.getlist("content-type")))
        declared = http.headers.get("content-length", "")
        self._length = int(declared) if declared.isdecimal() else None
        if self._length is not None and self._length > MOST_BYTES:
            raise _too_large()
        self._stream = http.stream()
        self._share = share_of(http.scope)
        self._span = (0, 0)
        self.whole = asyncio.Event()

    async def model(self) -> str:
        """The value of the field `model`. Reads only as far as that.

        Raises:
            Refusal: there is no such field, or it comes too late, or the form is ambiguous.
        """
        held = self._parts.held
        while self._parts.span is None:
            if len(held) > MAX_BODY_BYTES:
                raise invalid(
                    f"The form's field model comes after more than {MAX_BODY_BYTES >> 20} MiB: "
                    "send it first.",
                    "model",
                )
            try:
                self._parts.add(await anext(self._stream))
            except StopAsyncIteration:
                raise invalid("The form has no field model.", "model") from None
            except ClientDisconnect:
                raise Refusal(
                    "invalid_request_error", "The client left before its body ended."
                ) from None
        self._span = begin, end = self._parts.span
        if end - begin > _LONGEST_NAME:
            raise invalid("model: the name is too long.", "model")
        return held[begin:end].decode("utf-8", "replace").strip()

    def length(self, model: str) -> int | None:
        """The length of the body with this model in place of the client's; None: unknown."""
        if self._length is None:
            return None
        begin, end = self._span
        return self._length + len(model.encode()) - (end - begin)

    async def body(self, model: str) -> AsyncGenerator[bytes]:
        """The whole body, with this model in place of the client's.

        Raises:
            Refusal: the body is too large, names a second model, or is ambiguous. Then its end
                is missing.
            ClientDisconnect: the client left.
        """
        begin, end = self._span
        parts = self._parts
        # The end of a line before the first boundary isn't the client's.
        passed_bytes = len(parts.held) - 2
        piece = parts.take()
        yield piece[2:begin] + model.encode() + piece[end:]
        self._share.pass_on(len(piece) - 2)
        async for come in self._stream:
            passed_bytes += len(come)
            if passed_bytes > MOST_BYTES:
                raise _too_large()
            parts.add(come)
            if piece := parts.take():
                yield piece
                self._share.pass_on(len(piece))
        if not parts.closed:
            raise invalid("The form breaks off before its last boundary.", "body")
        yield bytes(parts.held)
        self._share.pass_on(len(parts.held))
        self.whole.set()


def _too_large() -> Refusal:
    return Refusal(
        "request_too_large",
        f"The form is larger than {MOST_BYTES >> 20} MiB, the largest that is passed on.",
    )
