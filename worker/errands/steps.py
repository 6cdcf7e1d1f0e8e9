"""How long steps take that resemble decoding, under limits of MLX of several kinds."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Final

import mlx.core as mx

from protocol.probe import StepTimes
from worker.errands.back_end import back_end

_LAYERS: Final = 16
_ROWS: Final = 8
_WIDENING: Final = 4
_WEIGHT_BYTES: Final = 256_000_000
# A CPU makes few steps a second of the others.
_WEIGHT_BYTES_ON_CPU: Final = 16_000_000
_ROUNDS: Final = 3
_ABOVE_BYTES: Final = 1_000_000_000
# The least that workers set.
_SMALL_CACHE_BYTES: Final = 32_000_000


def time_steps(seconds: float) -> StepTimes:
    """The kinds of limits take turns, so that whatever else the machine does is in each of them."""
    step = _build()
    step()
    active_bytes = mx.get_active_memory()
    own = _read_limits()
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
            _restore(own)
    return StepTimes(
        active_bytes=active_bytes,
        **{name: median(each) for name, each in times.items()},
    )


def _build() -> Callable[[], None]:
    """Layers of two products, as wide as their weights are to be in all."""
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
    """At least one."""
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
