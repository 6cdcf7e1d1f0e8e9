"""MLX's memory in this process: its device, its account, and giving memory back."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import traceback
from collections.abc import Iterator

import mlx.core as mx

from protocol.life import Device, MlxMemory
from worker.mlx_lm.wiring import synchronize, wiring

logger = logging.getLogger("worker")


def trim() -> None:
    """Give back the buffers that MLX keeps for reuse."""
    wait_for_computing()
    mx.clear_cache()


def give_back_buffers() -> None:
    """Have the C library give back the memory that weights passed through on their way to a card:
    it was seen to keep 4 GB (malloc_trim(3)).
    """
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
        # Metal's name, and CUDA's.
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
    """Give back what MLX held in the block, however the block ends."""
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

    If memory is unwired and the cache emptied before the exit, no wired pages are stranded on macOS
    (omlx#2184).
    """
    try:
        synchronize()
    except RuntimeError:
        # A GPU that has failed says so once more. There is nothing left to wait for.
        logger.exception("What was still being computed failed")
    wiring.undo()
    mx.clear_cache()


def _clear_frames(error: BaseException) -> None:
    """The frames of an error and of its causes refer to whatever their functions had, the model
    too.
    """
    last: BaseException | None = error
    while last is not None:
        traceback.clear_frames(last.__traceback__)
        last = last.__cause__ or last.__context__


def wait_for_computing() -> None:
    """Wait for MLX, without Python's lock.

    MLX's allocator for CPUs waits too, but holds the lock meanwhile: a worker whose peer is gone
    could say nothing any more (MLX 0.32.4).
    """
    if mx.default_device() == mx.cpu:
        synchronize()


def _bytes(value: str | int | None) -> int | None:
    return None if value is None else int(value)


def leave_imports_alone() -> None:
    """Take all objects of now out of the collector's sight: they stay until the end. To look
    through them takes 30 ms, the time of several tokens, in some answer of each worker.
    """
    gc.collect()
    gc.freeze()
