"""Blocks as bytes, and back: a header that tells shapes and structure, then the arrays' bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
import msgspec
import numpy as np
from msgspec import Struct

from worker.prompt_cache.blocks import Block

_LENGTH_BYTES: Final = 4


class PayloadError(ValueError):
    """Bytes that are no block."""


class _Header(Struct, array_like=True):
    shapes: list[list[int]]
    dtypes: list[str]
    structure: Any


class Payload:
    """A block on its way to bytes."""

    def __init__(self, block: Block) -> None:
        """The block may still be computed, which isn't waited for."""
        self._header = msgspec.msgpack.encode(
            _Header(
                [list(each.shape) for each in block.arrays],
                [str(each.dtype).rpartition(".")[2] for each in block.arrays],
                block.structure,
            )
        )
        self._raw = [each.reshape(-1).view(mx.uint8) for each in block.arrays if each.size]
        mx.async_eval(self._raw)  # type: ignore[no-untyped-call] # MLX leaves its types out

    @property
    def nbytes(self) -> int:
        return _LENGTH_BYTES + len(self._header) + sum(each.size for each in self._raw)

    def parts(self) -> list[bytes | memoryview]:
        """Buffers to be written one after the other; they show the arrays' memory, without a copy.
        Waits until it is computed.
        """
        length = len(self._header).to_bytes(_LENGTH_BYTES, "little")
        return [length, self._header, *(np.asarray(each).data for each in self._raw)]


def from_bytes(payload: bytes) -> Block:
    """Raises: PayloadError."""
    try:
        header_end = _LENGTH_BYTES + int.from_bytes(payload[:_LENGTH_BYTES], "little")
        header = msgspec.msgpack.decode(payload[_LENGTH_BYTES:header_end], type=_Header)
        arrays = _arrays(memoryview(payload)[header_end:], header)
    except (msgspec.MsgspecError, AttributeError, TypeError, ValueError) as error:
        raise PayloadError(str(error)) from error
    return Block(tuple(arrays), header.structure)


def _arrays(rest: memoryview, header: _Header) -> Sequence[mx.array]:
    arrays = []
    for shape, name in zip(header.shapes, header.dtypes, strict=True):
        dtype = getattr(mx, name)
        bytes_ = dtype.size
        for each in shape:
            bytes_ *= each
        if not bytes_:
            arrays.append(mx.zeros(shape, dtype))
            continue
        raw = np.frombuffer(rest[:bytes_], np.uint8)
        arrays.append(mx.array(raw).view(dtype).reshape(shape))
        rest = rest[bytes_:]
    if len(rest):
        raise PayloadError(f"{len(rest)} bytes too many")
    return arrays
