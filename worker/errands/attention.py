"""Whether attention writes its scores out: its peak then grows as their matrix does."""

from __future__ import annotations

from typing import Final, NamedTuple

import mlx.core as mx

from protocol.probe import AttentionPeak
from worker.errands.back_end import back_end


class _Size(NamedTuple):
    """Keys and values have fewer heads, as in most models of today."""

    heads: int
    key_heads: int
    queries: int
    keys: int


_SIZE: Final = _Size(heads=16, key_heads=4, queries=512, keys=4096)
_SIZE_ON_CPU: Final = _Size(heads=4, key_heads=2, queries=64, keys=512)


def measure_attention(head_dim: int, *, with_array: bool) -> AttentionPeak:
    on_cpu = back_end() == "cpu"
    size = _SIZE_ON_CPU if on_cpu else _SIZE
    kind = mx.float32 if on_cpu else mx.float16
    fewer = size._replace(keys=size.keys // 2)
    # Kernels are compiled at the first.
    _peak_bytes(fewer, head_dim, kind, with_array=with_array)
    few_bytes = _peak_bytes(fewer, head_dim, kind, with_array=with_array)
    many_bytes = _peak_bytes(size, head_dim, kind, with_array=with_array)
    pairs = size.heads * size.queries * (size.keys - fewer.keys)
    return AttentionPeak(many_bytes - few_bytes, pairs * kind.size)


def _peak_bytes(size: _Size, head_dim: int, kind: mx.Dtype, *, with_array: bool) -> int:
    """Beside inputs and output."""
    queries = mx.ones((1, size.heads, size.queries, head_dim), kind)
    keys = mx.ones((1, size.key_heads, size.keys, head_dim), kind)
    values = mx.ones((1, size.key_heads, size.keys, head_dim), kind)
    mask = mx.ones((size.queries, size.keys), mx.bool_) if with_array else "causal"
    mx.eval(queries, keys, values, mask)
    mx.clear_cache()
    before_bytes = mx.get_active_memory()
    mx.reset_peak_memory()
    output = mx.fast.scaled_dot_product_attention(
        queries, keys, values, scale=head_dim**-0.5, mask=mask
    )
    mx.eval(output)
    mx.synchronize()
    return mx.get_peak_memory() - before_bytes - output.nbytes
