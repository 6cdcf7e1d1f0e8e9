"""What this process may hold, as limits of MLX and as room for caches."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import traceback
from collections.abc import Iterator
from typing import Final

import mlx.core as mx

from protocol.life import Device
from protocol.memory import MlxMemory
from worker.engines.room import Room
from worker.wiring import synchronize, wiring

logger = logging.getLogger("worker")

# MLX's limit is a guard rail and lies above what the engine keeps to: past it every command buffer
# is waited for, and each miss empties the buffer cache (mlx transforms.cpp, allocator.cpp).
_GUARD_SHARE: Final = 0.1
_LEAST_GUARD_BYTES: Final = 256_000_000
# Fewer, and a step's temporaries are allocated anew each time.
_LEAST_CACHE_BYTES: Final = 32_000_000
# More than any machine has.
_LARGEST_BYTES: Final = 1 << 62


class Limits:
    """Of one worker with a model. The engine steers by `room`; MLX's limits follow it."""

    def __init__(self, room: Room, weight_bytes: int) -> None:
        self.room = room
        self._weight_bytes = weight_bytes
        self._least_beside_bytes = _LARGEST_BYTES

    def take(self, limit_bytes: int, beside_bytes: int) -> None:
        """Another limit, of which the process takes so much beside MLX."""
        self._least_beside_bytes = min(self._least_beside_bytes, beside_bytes)
        self.room.limit_bytes = limit_bytes
        self.room.fixed_bytes = beside_bytes + self._weight_bytes
        self.room.grown_bytes = beside_bytes - self._least_beside_bytes
        self._apply()

    @property
    def mlx_bytes(self) -> int:
        """What the limit leaves to MLX's account; 0 without one."""
        if self.room.limit_bytes is None:
            return 0
        return self.room.limit_bytes - (self.room.fixed_bytes - self._weight_bytes)

    def _apply(self) -> None:
        # Below what is active a limit does nothing but harm.
        mlx_bytes = max(self.mlx_bytes, mx.get_active_memory())
        mx.set_memory_limit(mlx_bytes + max(int(mlx_bytes * _GUARD_SHARE), _LEAST_GUARD_BYTES))
        # What a peak leaves behind is what the next one takes: given back, it would be allocated
        # anew each time, which on a GPU waits for everything.
        peaks_bytes = int(self.room.free_bytes * (1.0 - 1.0 / self.room.shape.peak))
        _wait_for_computing()
        mx.set_cache_limit(max(self.room.working_bytes, _LEAST_CACHE_BYTES) + peaks_bytes)


def trim() -> None:
    """Give back the buffers that MLX keeps for reuse."""
    _wait_for_computing()
    mx.clear_cache()


def give_back_buffers() -> None:
    """What weights came through to a card the C library keeps, once 4 GB of it (malloc_trim(3))."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None and mx.cuda.is_available():
        give_back(0)


def read_device() -> Device:
    """What MLX says of the device that it computes on."""
    info = mx.device_info()
    return Device(
        name=str(info["device_name"]),
        architecture=str(info["architecture"]),
        recommended_working_set_bytes=_bytes(info.get("max_recommended_working_set_size")),
        # Metal's and CUDA's names.
        memory_bytes=_bytes(info.get("memory_size", info.get("total_memory"))),
    )


def read_memory() -> MlxMemory:
    return MlxMemory(
        active_bytes=mx.get_active_memory(),
        cache_bytes=mx.get_cache_memory(),
        peak_bytes=mx.get_peak_memory(),
    )


@contextlib.contextmanager
def released_memory() -> Iterator[None]:
    """However the block ends, what MLX held for it is given back."""
    try:
        yield
    except Exception as error:
        _clear_frames(error)
        raise
    finally:
        # A model's modules refer to each other in cycles.
        gc.collect()
        release_memory()


def release_memory() -> None:
    """Give back what MLX holds, once nothing refers to it any more.

    Unwiring and emptying the cache before the exit is what keeps wired pages from being stranded
    on macOS (omlx#2184).
    """
    try:
        synchronize()
    except RuntimeError:
        # A GPU that fails says so once more. There is nothing left to wait for.
        logger.exception("What was still being computed failed")
    wiring.undo()
    mx.clear_cache()


def _clear_frames(error: BaseException) -> None:
    """What failed, and what led to it, refers to whatever its functions had: the model too."""
    last: BaseException | None = error
    while last is not None:
        traceback.clear_frames(last.__traceback__)
        last = last.__cause__ or last.__context__


def _wait_for_computing() -> None:
    """MLX's allocator for CPUs does that itself, but with Python's lock: of a worker whose peer is
    gone nothing would be heard any more (MLX 0.32.4).
    """
    if mx.default_device() == mx.cpu:
        synchronize()


def _bytes(value: str | int | None) -> int | None:
    return None if value is None else int(value)
