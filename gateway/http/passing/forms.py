"""A multipart form that is passed on. It is checked as it comes, and waits in an unnamed file until
all of it is there: only then does its request wait for a place at a server, however slowly the
client sends it.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import IO, Final, TypeVar

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from gateway.http.passing.form_parts import FormParts, boundary_of
from gateway.http.wire.bodies import MAX_BODY_BYTES
from gateway.http.wire.errors import invalid
from gateway.requests.share import ByteBudget, share_of
from gateway.system.lane import Lane
from gateway.system.refusal import Refusal

# An hour of sound without compression is 0.6 GB.
MOST_BYTES: Final = 1 << 30
_ALL_BYTES: Final = 8 << 30
_LONGEST_NAME: Final = 1000
_PIECE_BYTES: Final = 128 << 10
_DISK_S: Final = 30.0
_RETRY_AFTER_S: Final = 5

T = TypeVar("T")


class FormFiles:
    """The files of all forms, and the one thread that waits for their disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lane = Lane("forms")
        self.budget = ByteBudget(_ALL_BYTES)

    async def open(self) -> IO[bytes]:
        return await self.run(lambda: tempfile.TemporaryFile(dir=self._folder))

    async def run(self, call: Callable[[], T]) -> T:
        """Raises: Refusal: the disk is full, or doesn't answer."""
        try:
            return await self._lane.run(call, _DISK_S, "the disk of forms")
        except OSError as error:
            raise _no_room(str(error)) from error

    def close(self, file: IO[bytes], size_bytes: int) -> None:
        self.budget.give_back(size_bytes)
        self._lane.soon(file.close)


class Form:
    """The form in the body of a request."""

    def __init__(self, http: HttpRequest, files: FormFiles) -> None:
        """Raises: Refusal: the body is no form, or says that it is too large."""
        self._parts = FormParts(boundary_of(http.headers.getlist("content-type")))
        declared = http.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > MOST_BYTES:
            raise _too_large()
        self._stream = http.stream()
        self._share = share_of(http.scope)
        self._come_bytes = 0
        self._span = (0, 0)
        self._files = files
        self._file: IO[bytes]
        self._size = 0

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
            if not await self._read_more():
                raise invalid("The form has no field model.", "model")
        self._span = begin, end = self._parts.span
        if end - begin > _LONGEST_NAME:
            raise invalid("model: the name is too long.", "model")
        return held[begin:end].decode("utf-8", "replace").strip()

    async def read(self) -> set[str]:
        """Read the rest. Call `model` first. Returns the names of all fields, without `[]`.

        Raises:
            Refusal: the form is too large, names a second model, is ambiguous, or finds no room.
        """
        parts = self._parts
        self._file = await self._files.open()
        self._share.when_released(lambda: self._files.close(self._file, self._size))
        while await self._read_more():
            if len(parts.held) >= _PIECE_BYTES:
                await self._keep(parts.take())
        if not parts.closed:
            raise invalid("The form breaks off before its last boundary.", "body")
        await self._keep(bytes(parts.held))
        return {each.removesuffix("[]") for each in parts.names}

    async def _read_more(self) -> bool:
        """Returns whether there was more."""
        try:
            piece = await anext(self._stream, None)
        except ClientDisconnect:
            raise Refusal(
                "invalid_request_error", "The client left before its body ended."
            ) from None
        if piece is None:
            return False
        self._come_bytes += len(piece)
        if self._come_bytes > MOST_BYTES:
            raise _too_large()
        self._parts.add(piece)
        return True

    async def _keep(self, piece: bytes) -> None:
        budget = self._files.budget
        # A form leaves as much room as it takes, so that large ones don't keep small ones out.
        if self._size + len(piece) > budget.left_bytes or not budget.take(len(piece)):
            raise _no_room(f"all forms together would take too much of {_ALL_BYTES >> 30} GiB")
        self._size += len(piece)
        await self._files.run(partial(self._file.write, piece))
        self._share.pass_on(len(piece))

    def length(self, model: str) -> int:
        """The length of the body with this model in place of the client's."""
        begin, end = self._span
        # The end of a line before the first boundary isn't the client's.
        return self._size - 2 + len(model.encode()) - (end - begin)

    async def body(self, model: str) -> AsyncGenerator[bytes]:
        """The whole body, with this model in place of the client's. Raises: Refusal."""
        begin, end = self._span
        for at, until, replaced in ((2, begin, model.encode()), (end, self._size, b"")):
            for place in range(at, until, _PIECE_BYTES):
                count = min(_PIECE_BYTES, until - place)
                yield await self._files.run(partial(_read, self._file, place, count))
            yield replaced


def _read(file: IO[bytes], place: int, count: int) -> bytes:
    file.seek(place)
    return file.read(count)


def _too_large() -> Refusal:
    return Refusal(
        "request_too_large",
        f"The form is larger than {MOST_BYTES >> 20} MiB, the largest that is passed on.",
    )


def _no_room(reason: str) -> Refusal:
    return Refusal(
        "overloaded", f"The form finds no room now: {reason}.", retry_after_s=_RETRY_AFTER_S
    )
