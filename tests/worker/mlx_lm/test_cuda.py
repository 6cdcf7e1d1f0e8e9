"""What replaces MLX's slow operations on CUDA computes the same. These run on any device."""

from __future__ import annotations

import mlx.core as mx
import pytest

from worker.mlx_lm.cuda import attention, quantized_matmul


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (3, 1), (5, 2), (32, 1), (1, 5)])
def test_products_with_quantized_weights(shape: tuple[int, int]) -> None:
    weights, scales, biases = mx.quantize(mx.random.normal((96, 64)), 64, 4)
    tokens = mx.random.normal((*shape, 64))
    options = {"scales": scales, "biases": biases, "transpose": True, "group_size": 64, "bits": 4}
    expected = mx.quantized_matmul(tokens, weights, **options)
    made = quantized_matmul(tokens, weights, **options)
    assert made.shape == (*shape, 96)
    assert mx.allclose(made, expected, atol=1e-4)


@pytest.mark.parametrize("mask", [None, "causal", "rows", "heads", "numbers"])
@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("keys", [20, 8200])
def test_attention(mask: str | None, tokens: int, keys: int) -> None:
    rows, heads, groups, width = 3, 8, 2, 16
    q = mx.random.normal((rows, heads, tokens, width))
    k, v = (mx.random.normal((rows, groups, keys, width)) for _ in range(2))
    given: mx.array | str | None = mask
    if mask in {"rows", "heads", "numbers"}:
        shape = (rows, heads if mask == "heads" else 1, tokens, keys)
        given = mx.random.uniform(shape=shape) > 0.3
        if mask == "numbers":
            given = mx.where(given, 0.0, -1e9)
    expected = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.25, mask=given)
    assert mx.allclose(attention(q, k, v, scale=0.25, mask=given), expected, atol=1e-4)
