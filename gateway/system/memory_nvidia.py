"""Memory of NVIDIA's cards, by process and by card, from NVML, a library of the driver."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import pynvml

from gateway.system.memory_reading import CardMemory, FootprintError

# The host's PID namespace has this number on every Linux (PROC_PID_INIT_INO, <linux/proc_ns.h>).
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
# How the paths of device files begin: of NVIDIA's driver, and of WSL's.
_DEVICES: Final = ("/dev/nvidia", "/dev/dxg")


def card_bytes(pid: int) -> int:
    """The memory that a process has on all cards; 0 if it uses none.

    Raises:
        FootprintError: the memory is unknown. In a container NVML's library may be missing although
            the devices are there (NVIDIA_DRIVER_CAPABILITIES without "utility"), or NVML may not
            list the process. If the process has a device open, 0 would then be wrong.
    """
    with _errors():
        try:
            used = [
                user.usedGpuMemory
                for card in _cards()
                for user in pynvml.nvmlDeviceGetComputeRunningProcesses(card)
                if user.pid == pid
            ]
        except pynvml.NVMLError_LibraryNotFound:
            if has_open(pid, _DEVICES):
                raise
            return 0
    if None in used:
        raise FootprintError(f"pid {pid}: NVML keeps no memory per process on this system")
    if not used and not _sees_all() and has_open(pid, _DEVICES):
        raise FootprintError(
            f"pid {pid}: it uses an NVIDIA device, and NVML doesn't list it: the container "
            "needs the host's process ids (docker run --pid=host)"
        )
    return sum(used)


def card_memory(pids: Collection[int]) -> CardMemory | None:
    """The memory of all cards on which one of these processes computes; None if none does.

    Raises:
        FootprintError: NVML doesn't give the memory of a card.
    """
    with _errors():
        try:
            memories = [
                pynvml.nvmlDeviceGetMemoryInfo(card)
                for card in _cards()
                if any(
                    user.pid in pids for user in pynvml.nvmlDeviceGetComputeRunningProcesses(card)
                )
            ]
        except pynvml.NVMLError_LibraryNotFound:
            return None
    if not memories:
        return None
    return CardMemory(
        sum(memory.total for memory in memories),
        sum(memory.free for memory in memories),
    )


def has_open(pid: int, devices: tuple[str, ...]) -> bool:
    """Whether a process has a file open whose path begins with one of `devices`.

    Raises:
        FootprintError: there is no such process, or it may not be read.
    """
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError as error:
        raise FootprintError(f"pid {pid}: {error.strerror}") from error
    for descriptor in descriptors:
        # The process may have closed the file meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if str(descriptor.readlink()).startswith(devices):
                return True
    return False


def _cards() -> list[Any]:
    """NVML's handles of all cards; none where the driver isn't loaded."""
    try:
        _start()
    except pynvml.NVMLError_DriverNotLoaded:
        return []
    return [
        pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
    ]


@functools.cache
def _start() -> None:
    """Start NVML once; after a failure the next call tries again."""
    pynvml.nvmlInit()


@functools.cache
def _sees_all() -> bool:
    """Whether NVML lists processes by the ids that they have here. In a container with a PID
    namespace of its own NVML may have other ids.
    """
    return str(Path("/proc/self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as error:
        raise FootprintError(f"NVML: {error}") from error
