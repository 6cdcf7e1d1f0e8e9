"""The bytes of a block: a header with shapes, types and structure, and then those of its arrays."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import mlx.core as mx
import msgspec
import numpy as np
from msgspec import Struct

from worker.prompt_cache.blocks import Block

_LENGTH_BYTES: Final = 4


def _writer() -> str:
    try:
        own = version("mlx-bulkhead")
    except PackageNotFoundError:
        own = "unknown"  # It runs from its sources.
    return f"Bulkhead {own} with MLX {version('mlx')}"


_WRITER: Final = _writer()


class PayloadError(ValueError):
    """The bytes are not those of a block."""


class _Header(Struct, array_like=True):
    """Earlier versions didn't name themselves as the `writer`."""

    shapes: list[list[int]]
    dtypes: list[str]
    structure: Any
    writer: str = "an unknown version"


class Payload:
    """A block on its way to bytes."""

    def __init__(self, block: Block) -> None:
        """Begins to make the bytes, and doesn't wait, even if the block is still being computed."""
        self._header = msgspec.msgpack.encode(
            _Header(
                [list(array.shape) for array in block.arrays],
                [str(array.dtype).rpartition(".")[2] for array in block.arrays],
                block.structure,
                block.writer or _WRITER,
            )
        )
        self._raw = [array.reshape(-1).view(mx.uint8) for array in block.arrays if array.size]
        mx.async_eval(self._raw)  # type: ignore[no-untyped-call] # MLX leaves its types out

    @property
    def nbytes(self) -> int:
        return _LENGTH_BYTES + len(self._header) + sum(array.size for array in self._raw)

    def parts(self) -> list[bytes | memoryview]:
        """Buffers to write one after the other, which share the memory of arrays. Waits until the
        block is computed.
        """
        length = len(self._header).to_bytes(_LENGTH_BYTES, "little")
        return [length, self._header, *(np.asarray(array).data for array in self._raw)]


def from_bytes(payload: bytes) -> Block:
    """Raises: PayloadError."""
    try:
        header_end = _LENGTH_BYTES + int.from_bytes(payload[:_LENGTH_BYTES], "little")
        header = msgspec.msgpack.decode(payload[_LENGTH_BYTES:header_end], type=_Header)
        arrays = _arrays(memoryview(payload)[header_end:], header)
    except (msgspec.MsgspecError, AttributeError, TypeError, ValueError) as error:
        raise PayloadError(str(error)) from error
    return Block(tuple(arrays), header.structure, header.writer)


def _arrays(rest: memoryview, header: _Header) -> Sequence[mx.array]:
    arrays = []
    for shape, name in zip(header.shapes, header.dtypes, strict=True):
        dtype = getattr(mx, name)
        bytes_ = dtype.size
        for length in shape:
            bytes_ *= length
        if not bytes_:
            arrays.append(mx.zeros(shape, dtype))
            continue
        raw = np.frombuffer(rest[:bytes_], np.uint8)
        arrays.append(mx.array(raw).view(dtype).reshape(shape))
        rest = rest[bytes_:]
    if len(rest):
        raise PayloadError(f"{len(rest)} bytes too many")
    return arrays
