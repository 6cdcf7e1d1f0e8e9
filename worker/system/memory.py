"""MLX's device, MLX's account of this process's memory, functions that give memory back, and the
size that no array exceeds.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import traceback
from collections.abc import Iterator
from typing import Final

import mlx.core as mx

from protocol.life import Device, MlxMemory
from worker.mlx_lm.macos import synchronize, wiring

logger = logging.getLogger("worker")


def trim() -> None:
    """Give back the buffers that MLX keeps for reuse."""
    wait_for_computing()
    mx.clear_cache()


def give_back_buffers() -> None:
    """With CUDA, have the C library give back the memory through which weights went to the GPU
    (malloc_trim(3)). The library was seen to keep 4 GB.
    """
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None and mx.cuda.is_available():
        give_back(0)


def read_device() -> Device:
    """The device that MLX computes on."""
    info = mx.device_info()
    return Device(
        name=str(info["device_name"]),
        architecture=str(info["architecture"]),
        recommended_working_set_bytes=_bytes(info.get("max_recommended_working_set_size")),
        # "memory_size" is Metal's key, "total_memory" CUDA's.
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
    """Give back the memory that MLX took in the block, even if the block raises."""
    try:
        yield
    except Exception as error:
        _clear_frames(error)
        raise
    finally:
        # The modules of a model refer to each other in cycles.
        gc.collect()
        release_memory()


def release_memory() -> None:
    """Give back the memory that MLX holds and to which no array refers.

    If memory is unwired and MLX's cache emptied before the process ends, no wired pages are
    stranded on macOS (omlx#2184).
    """
    try:
        synchronize()
    except RuntimeError:
        # A GPU that has failed raises once more. No computation is left to wait for.
        logger.exception("The last computations failed")
    wiring.undo()
    mx.clear_cache()


def _clear_frames(error: BaseException) -> None:
    """Clear the frames of an error and of its causes. Frames keep the variables of their functions
    alive, such as the model.
    """
    last: BaseException | None = error
    while last is not None:
        traceback.clear_frames(last.__traceback__)
        last = last.__cause__ or last.__context__


def wait_for_computing() -> None:
    """On a CPU, wait until MLX has computed, with Python's lock free.

    Otherwise MLX's allocator for CPUs waits, and holds the lock meanwhile: a worker that waits for
    a rank that is gone could send no more messages (MLX 0.32.4).
    """
    if mx.default_device() == mx.cpu:
        synchronize()


def _bytes(value: str | int | None) -> int | None:
    return None if value is None else int(value)


def freeze_imports() -> None:
    """Exempt all present objects from Python's garbage collection, since they live as long as the
    process. Otherwise the collector searches them during some answer of each worker, for 30 ms,
    the time of several tokens.
    """
    gc.collect()
    gc.freeze()


# Some of MLX's kernels count the elements of an array in 32 bits. On CUDA, mx.concatenate along any
# axis but the first one gave wrong elements beyond this number, without an error (mlx 0.32.4).
MOST_ELEMENTS: Final = (1 << 31) - 1


def most_parts(part_elements: int) -> int:
    """How many parts of `part_elements` elements one array can have, at least one."""
    return max(1, MOST_ELEMENTS // max(1, part_elements))
