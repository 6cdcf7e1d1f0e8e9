"""What replaces MLX's slow operations on CUDA computes the same. These run on any device."""

from __future__ import annotations

import mlx.core as mx
import pytest

from worker.mlx_lm.cuda import attention, products, quantized_matmul


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


@pytest.mark.parametrize("mask", [None, "causal", "rows"])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("tokens", [1, 40])
def test_attention_as_products(mask: str | None, sinks: bool, tokens: int) -> None:
    rows, heads, groups, width, keys = 2, 8, 2, 16, 60
    q = mx.random.normal((rows, heads, tokens, width))
    k, v = (mx.random.normal((rows, groups, keys, width)) for _ in range(2))
    sink = mx.random.normal((heads,)) if sinks else None
    given: mx.array | str | None = mask
    if mask == "rows":
        given = mx.random.uniform(shape=(rows, 1, tokens, keys)) > 0.3
    expected = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.25, mask=given, sinks=sink)
    assert mx.allclose(products(q, k, v, 0.25, given, sink), expected, atol=1e-4)


def test_half_precision_is_computed_as_products_beside_a_single_token() -> None:
    q = mx.random.normal((2, 4, 9, 16)).astype(mx.bfloat16)
    k = mx.random.normal((2, 2, 30, 16)).astype(mx.bfloat16)
    made = attention(q, k, k, scale=0.25, mask="causal")
    assert mx.array_equal(made, products(q, k, k, 0.25, "causal"))
