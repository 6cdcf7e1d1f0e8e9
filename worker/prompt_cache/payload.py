"""Blocks as bytes, and back: a header that tells shapes and structure, then the arrays' bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
from msgspec import Struct

from worker.prompt_cache.blocks import Block


class PayloadError(ValueError):
    """Bytes that are no block."""


class _Header(Struct, array_like=True):
    shapes: list[list[int]]
    dtypes: list[str]
    structure: Any


def to_parts(block: Block) -> list[bytes | memoryview]:
    """Buffers to be written one after the other; they show the arrays' memory, without a copy."""
    header = msgspec.msgpack.encode(
        _Header(
            [list(each.shape) for each in block.arrays],
            [str(each.dtype).rpartition(".")[2] for each in block.arrays],
            block.structure,
        )
    )
    raw = [each.reshape(-1).view(mx.uint8) for each in block.arrays if each.size]
    mx.eval(raw)
    buffers = [np.asarray(each).data for each in raw]
    return [len(header).to_bytes(4, "little"), header, *buffers]


def from_bytes(payload: bytes) -> Block:
    """Raises: PayloadError."""
    try:
        header_end = 4 + int.from_bytes(payload[:4], "little")
        header = msgspec.msgpack.decode(payload[4:header_end], type=_Header)
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
