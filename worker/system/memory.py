"""MLX's memory in this process: what there is, what is held, and giving it back."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import traceback
from collections.abc import Iterator

import mlx.core as mx

from protocol.life import Device
from protocol.memory import MlxMemory
from worker.mlx_lm.wiring import synchronize, wiring

logger = logging.getLogger("worker")


def trim() -> None:
    """Give back the buffers that MLX keeps for reuse."""
    wait_for_computing()
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


def wait_for_computing() -> None:
    """MLX's allocator for CPUs does that itself, but with Python's lock: of a worker whose peer is
    gone nothing would be heard any more (MLX 0.32.4).
    """
    if mx.default_device() == mx.cpu:
        synchronize()


def _bytes(value: str | int | None) -> int | None:
    return None if value is None else int(value)
