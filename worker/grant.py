"""MLX's limits from the bytes that admission granted to this process."""

from __future__ import annotations

import mlx.core as mx

from protocol.messages import Device, Load, MlxMemory

# The share of the limit that MLX may keep in freed buffers: enough to reuse a step's temporaries,
# little enough that a peak in one model is not lost to the others.
_CACHE_SHARE = 8


def apply_grant(grant_bytes: int, baseline_bytes: int, device: Device) -> None:
    """Set MLX's memory, cache and wired limits so that the process stays within its grant.

    The limits count MLX's allocations only, so what the process holds without a model is taken off.
    A BatchGenerator resets the wired limit when it is built: call this afterwards.
    """
    limit_bytes = max(0, grant_bytes - baseline_bytes)
    mx.set_memory_limit(limit_bytes)
    mx.set_cache_limit(limit_bytes // _CACHE_SHARE)
    # Above the recommended working set set_wired_limit raises; without one nothing can be wired.
    mx.set_wired_limit(min(limit_bytes, device.recommended_working_set_bytes or 0))


def room_bytes(command: Load) -> int | None:
    """What of its grant a loaded model has left for caches; None if it has no grant."""
    if command.grant_bytes is None:
        return None
    mx.clear_cache()
    taken_bytes: int = command.baseline_bytes + mx.get_active_memory() + command.working_bytes
    return max(0, command.grant_bytes - taken_bytes)


def trim() -> None:
    """Give back the buffers that MLX keeps for reuse."""
    mx.clear_cache()


def read_device() -> Device:
    """What MLX says of the device that it computes on."""
    info = mx.device_info()
    return Device(
        name=str(info["device_name"]),
        architecture=str(info["architecture"]),
        recommended_working_set_bytes=_bytes(info.get("max_recommended_working_set_size")),
        memory_bytes=_bytes(info.get("memory_size")),
    )


def read_memory() -> MlxMemory:
    return MlxMemory(
        active_bytes=mx.get_active_memory(),
        cache_bytes=mx.get_cache_memory(),
        peak_bytes=mx.get_peak_memory(),
    )


def release_memory() -> None:
    """Give back what MLX holds, once nothing refers to the model any more.

    Unwiring and emptying the cache before the exit is what keeps wired pages from being stranded
    on macOS (omlx#2184).
    """
    mx.set_wired_limit(0)
    mx.synchronize()
    mx.clear_cache()


def _bytes(value: str | int | None) -> int | None:
    return None if value is None else int(value)
