"""Blocks as bytes, and whatever else comes as bytes."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.prompt_cache.block_bytes import Payload, PayloadError, from_bytes
from worker.prompt_cache.blocks import Block

BLOCK = Block(
    (
        mx.arange(12).reshape(1, 3, 4).astype(mx.bfloat16),
        mx.array([[1.5, -0.0]]),
        mx.zeros((1, 2, 0)),
        mx.array(7, mx.uint32),
    ),
    [[{"array": 0}, None, True, 3, 0.5, "keep"], [{"array": 3}]],
)


def _bytes(block: Block) -> bytes:
    return b"".join(bytes(part) for part in Payload(block).parts())


def test_packed_blocks_are_unpacked() -> None:
    again = from_bytes(_bytes(BLOCK))
    assert again.structure == BLOCK.structure
    for one, other in zip(again.arrays, BLOCK.arrays, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert mx.array_equal(one, other)


@given(st.data())
def test_damaged_payloads_are_refused(data: st.DataObject) -> None:
    whole = _bytes(BLOCK)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(PayloadError):
        from_bytes(whole[:cut])
    with pytest.raises(PayloadError):
        from_bytes(whole + b"\0")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(PayloadError):
        from_bytes(raw)
