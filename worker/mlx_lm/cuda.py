"""Operations that MLX's CUDA back end computes slowly in the shapes of a batch (mlx 0.32.4).

Importing this module replaces them, if MLX runs on CUDA. Measured on an H100:

- A product of 32 rows of one token with 4-bit weights of 12288 x 4096 takes 694 us, since the rows
  are multiplied one by one. As 32 tokens of one row they take 63 us.
- cuDNN plans attention anew for each shape, which takes 0.2 to 4 s for prompts and masks, and in
  serving nearly every step has a new shape. The first requests of a 0.9 GB model waited 27 s with
  cuDNN's attention and 0.8 s without. A token of a single row is planned for 256 slots at a time,
  in milliseconds. On an H200 it takes 0.04 ms a layer over 30,000 slots, and 0.15 ms without cuDNN.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx

from protocol.life import CACHE_STEP_TOKENS

# MLX multiplies fewer rows one by one in any shape.
_LEAST_ROWS: Final = 8
# The most tokens a row in a step.
_MOST_TOKENS: Final = 32
# What cuDNN would compute.
_PLANNED_TYPES: Final = (mx.bfloat16, mx.float16)
_PLANNED_WIDTH: Final = 128

_quantized_matmul: Final = mx.quantized_matmul
_attention: Final = mx.fast.scaled_dot_product_attention


def quantized_matmul(x: mx.array, w: mx.array, *arguments: Any, **options: Any) -> mx.array:
    """MLX's product with quantized weights, for all rows at once."""
    rows = x.size // x.shape[-1]
    if w.ndim != 2 or x.ndim < 3 or rows < _LEAST_ROWS:
        return _quantized_matmul(x, w, *arguments, **options)
    flat = x.reshape(rows, x.shape[-1])
    return _quantized_matmul(flat, w, *arguments, **options).reshape(*x.shape[:-1], -1)


def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    *,
    scale: float,
    mask: Any = None,
    sinks: mx.array | None = None,
    **options: Any,
) -> mx.array:
    """MLX's attention, with cuDNN for a token of a single row alone."""
    rows, _, tokens, width = queries.shape
    slots = keys.shape[2]
    if tokens == 1 and isinstance(mask, str):
        # The only token comes last, and looks at everything.
        mask = None
    planned = queries.dtype in _PLANNED_TYPES and max(width, values.shape[-1]) <= _PLANNED_WIDTH
    if tokens == 1 and mask is None:
        planned &= rows > 1 and slots >= CACHE_STEP_TOKENS
    short = mask is not None and sinks is None and tokens <= _MOST_TOKENS
    if options or not (planned or short):
        return _attention(queries, keys, values, scale=scale, mask=mask, sinks=sinks, **options)
    return products(queries, keys, values, scale, mask, sinks)


def slots_of(array: mx.array, begin: int, end: int) -> mx.array:
    """Some slots of keys or values, (rows, heads, slots, width). For MLX's attention with cuDNN
    each part of a cache begins at slot 0, and other memory would be read. So a part of a single row
    that begins later is copied.
    """
    part = array[:, :, begin:end]
    apart = begin > 0 and array.shape[0] == 1 and mx.cuda.is_available()
    return mx.contiguous(part) if apart else part


def products(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None = None,
) -> mx.array:
    """Attention as products of matrices, in which the queries that share keys are rows of one
    matrix.
    """
    rows, heads, tokens, width = queries.shape
    groups, slots = keys.shape[1:3]
    shared = (queries * scale).reshape(rows, groups, -1, width)
    scores = (shared @ keys.swapaxes(-1, -2)).reshape(rows, groups, -1, tokens, slots)
    if mask is not None:
        by_group = _by_group(mask, tokens, slots, groups)
        if by_group.dtype == mx.bool_:
            scores = mx.where(by_group, scores, mx.finfo(scores.dtype).min)
        else:
            scores = scores + by_group
    if sinks is not None:
        sink = sinks.astype(scores.dtype).reshape(1, groups, -1, 1, 1)
        sink = mx.broadcast_to(sink, (*scores.shape[:-1], 1))
        scores = mx.concatenate([sink, scores], axis=-1)
    weights = mx.softmax(scores, axis=-1, precise=True)[..., -slots:]
    return (weights.reshape(rows, groups, -1, slots) @ values).reshape(
        rows, heads, tokens, values.shape[-1]
    )


def _by_group(mask: mx.array | str, tokens: int, slots: int, groups: int) -> mx.array:
    """A mask with the heads of each group on an axis of their own."""
    if isinstance(mask, str):
        mask = mx.arange(slots) <= mx.arange(slots - tokens, slots)[:, None]
    while mask.ndim < 4:
        mask = mask[None]
    if mask.shape[1] > 1:
        return mask.reshape(mask.shape[0], groups, -1, *mask.shape[2:])
    return mask[:, :, None]


if mx.cuda.is_available():
    mx.quantized_matmul = quantized_matmul
    mx.fast.scaled_dot_product_attention = attention  # type: ignore[assignment]  # as MLX's
