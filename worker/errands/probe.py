"""The errand that measures the memory and the speed of MLX in this process, by orders."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from math import prod
from statistics import median
from typing import Any, Final, Literal, NamedTuple

import mlx.core as mx
from msgspec import Struct

from protocol.errands import (
    AttentionPeak,
    ComparedArray,
    Compute,
    Hold,
    Import,
    Imported,
    JoinArrays,
    MeasureAttention,
    Multiply,
    ProbeOrder,
    Rate,
    StepTimes,
    TimeSteps,
)
from protocol.life import MlxMemory
from worker.errands import Errand
from worker.mlx_lm.macos import wiring
from worker.system.memory import read_device, read_memory, released_memory

# Layers, tokens and width of a block that is joined with others.
_BLOCK: Final = (64, 256, 128)
_LAYERS: Final = 16
_ROWS: Final = 8
_WIDENING: Final = 4
_WEIGHT_BYTES: Final = 256_000_000
# Fewer weights on a CPU, which would make too few steps a second otherwise.
_WEIGHT_BYTES_ON_CPU: Final = 16_000_000
_ROUNDS: Final = 3
_ABOVE_BYTES: Final = 1_000_000_000
# The smallest cache limit that workers set.
_SMALL_CACHE_BYTES: Final = 32_000_000


def probe(errand: Errand) -> None:
    """Carry out all orders, then give the memory back as a worker does."""
    errand.answer_versions()
    with released_memory():
        _obey_all(errand)


def back_end() -> Literal["metal", "cuda", "cpu"]:
    """The back end of MLX's default device."""
    if mx.default_device() == mx.cpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


class _Size(NamedTuple):
    """The sizes of one attention. Keys and values have fewer heads than queries, as in most models
    of today.
    """

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
    # The first computation compiles the kernels.
    _peak_bytes(fewer, head_dim, kind, with_array=with_array)
    few_bytes = _peak_bytes(fewer, head_dim, kind, with_array=with_array)
    many_bytes = _peak_bytes(size, head_dim, kind, with_array=with_array)
    pairs = size.heads * size.queries * (size.keys - fewer.keys)
    return AttentionPeak(many_bytes - few_bytes, pairs * kind.size)


def _peak_bytes(size: _Size, head_dim: int, kind: mx.Dtype, *, with_array: bool) -> int:
    """The peak of MLX's memory during one attention, without its inputs and output."""
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


def join_arrays(elements: int) -> ComparedArray:
    """Join arrays as the prompt cache joins blocks: along an axis that isn't the first one."""
    number = -(-elements // prod(_BLOCK))
    joined = mx.concatenate(
        [mx.full(_BLOCK, index % 256, mx.uint8) for index in range(number)], axis=1
    )
    mx.eval(joined)
    expected = mx.repeat((mx.arange(number) % 256).astype(mx.uint8), _BLOCK[1])[:, None]
    # Layer by layer: an array of all comparisons would be as large.
    wrong = [(layer != expected).sum().item() for layer in joined]
    return ComparedArray(joined.size, sum(map(int, wrong)))  # type: ignore[arg-type]  # whole numbers


# Small whole numbers, whose products and sums float16 has without rounding.
_PRODUCT_WIDTH: Final = 64
_ROWS_AT_ONCE: Final = 4096


def multiply(rows: int) -> ComparedArray:
    """Compare a product of many rows in float16 with products of few rows in float32."""
    left = mx.random.randint(-2, 3, (rows, _PRODUCT_WIDTH))
    right = mx.random.randint(-2, 3, (_PRODUCT_WIDTH, _PRODUCT_WIDTH))
    product = left.astype(mx.float16) @ right.astype(mx.float16)
    mx.eval(product)
    wrong = 0
    for begin in range(0, rows, _ROWS_AT_ONCE):
        part = slice(begin, begin + _ROWS_AT_ONCE)
        expected = left[part].astype(mx.float32) @ right.astype(mx.float32)
        differs = product[part].astype(mx.float32) != expected
        wrong += int(differs.sum().item())  # type: ignore[arg-type]  # whole numbers
    return ComparedArray(product.size, wrong)


def compute(seconds: float) -> Rate:
    step = _build()
    step()
    return Rate(1 / median(_times(step, seconds)))


def time_steps(seconds: float) -> StepTimes:
    """Measure the time of a step under each kind of limit, for about `seconds` in all. The kinds
    take turns, so that other work of the machine affects all of them alike.
    """
    step = _build()
    step()
    active_bytes = mx.get_active_memory()
    limits = _read_limits()
    kinds: dict[str, Callable[[], object]] = {
        "without_limits_s": lambda: None,
        "limit_above_s": lambda: mx.set_memory_limit(active_bytes + _ABOVE_BYTES),
        "limit_below_s": lambda: mx.set_memory_limit(active_bytes // 2),
        "small_cache_s": lambda: mx.set_cache_limit(_SMALL_CACHE_BYTES),
        "no_cache_s": lambda: mx.set_cache_limit(0),
    }
    share_s = seconds / (_ROUNDS * len(kinds))
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(_ROUNDS):
        for name, limit in kinds.items():
            limit()
            step()
            times[name] += _times(step, share_s)
            _restore(limits)
    return StepTimes(
        active_bytes=active_bytes,
        **{name: median(moment) for name, moment in times.items()},
    )


def _build() -> Callable[[], None]:
    """A function that computes one step: layers of two matrix products each. Their weights have
    `_WEIGHT_BYTES` in all, on a CPU `_WEIGHT_BYTES_ON_CPU`.
    """
    on_cpu = back_end() == "cpu"
    kind = mx.float32 if on_cpu else mx.float16
    layer_bytes = (_WEIGHT_BYTES_ON_CPU if on_cpu else _WEIGHT_BYTES) // _LAYERS
    width = int((layer_bytes / (2 * _WIDENING * kind.size)) ** 0.5)
    wide = width * _WIDENING
    layers = [
        (mx.full((width, wide), 0.5 / width, kind), mx.full((wide, width), 0.5 / wide, kind))
        for _ in range(_LAYERS)
    ]
    start = mx.ones((_ROWS, width), kind)
    mx.eval(layers, start)

    def step() -> None:
        x = start
        for up, down in layers:
            x = x + mx.maximum(x @ up, 0) @ down
        mx.eval(x)

    return step


def _times(step: Callable[[], None], seconds: float) -> list[float]:
    """The seconds of each step. Steps are repeated, at least once, for so many `seconds` in all."""
    times: list[float] = []
    while sum(times) < seconds:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return times


def _read_limits() -> tuple[int, int]:
    memory_bytes, cache_bytes = mx.set_memory_limit(1), mx.set_cache_limit(1)
    _restore((memory_bytes, cache_bytes))
    return memory_bytes, cache_bytes


def _restore(limits: tuple[int, int]) -> None:
    memory_bytes, cache_bytes = limits
    mx.set_memory_limit(memory_bytes)
    mx.set_cache_limit(cache_bytes)


def _obey_all(errand: Errand) -> None:
    held: list[mx.array] = []
    for order in errand.orders(ProbeOrder):
        errand.answer(_obey(order, held))


def _obey(order: Any, held: list[mx.array]) -> Struct:
    match order:
        case Import():
            return _import()
        case Hold(size_bytes=size_bytes, wire=wire):
            return _hold(held, size_bytes, wire=wire)
        case TimeSteps(seconds=seconds):
            return time_steps(seconds)
        case Compute(seconds=seconds):
            return compute(seconds)
        case JoinArrays(elements=elements):
            return join_arrays(elements)
        case Multiply(rows=rows):
            return multiply(rows)
        case MeasureAttention(head_dim=head_dim, mask=mask):
            return measure_attention(head_dim, with_array=mask == "array")
    return read_memory()


def _import() -> Imported:
    # Imported here and not at the top of the file, because the cost of the imports is measured.
    for module in ("worker.process.loop", "worker.runtime.serve"):
        importlib.import_module(module)
    read_device()
    return Imported(back_end(), dict(mx.device_info()), read_memory())


def _hold(held: list[mx.array], size_bytes: int, *, wire: bool) -> MlxMemory:
    if wire:
        wiring.wire(size_bytes, read_device())
    missing_bytes = size_bytes - sum(array.nbytes for array in held)
    if missing_bytes > 0:
        held.append(mx.ones((missing_bytes // 4,), mx.float32))
        # The array is read once, because memory that was never read may not be resident.
        mx.eval(held[-1], mx.max(held[-1]))
    mx.synchronize()
    return read_memory()
