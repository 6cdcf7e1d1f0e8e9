"""NVIDIA memory of processes and of their cards, from NVML.

Its library, libnvidia-ml.so.1, comes with the driver.

Signatures, layouts and numbers are those of nvml.h (docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

from gateway.system.memory.reading import CardMemory, FootprintError

LIBRARY: Final = "libnvidia-ml.so.1"
_SUCCESS: Final = 0
_INSUFFICIENT_SIZE: Final = 7
_DRIVER_NOT_LOADED: Final = 9
# NVML_VALUE_NOT_AVAILABLE: what the driver of Windows says, under WSL too.
_NOT_AVAILABLE: Final = 2**64 - 1
# Processes may start between the question how many there are and the one which.
_ROOM: Final = 16
_TRIES: Final = 3
# The first namespace has this number on every Linux (PROC_PID_INIT_INO of <linux/proc_ns.h>).
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
# NVIDIA's driver, and that of WSL.
DEVICES: Final = ("/dev/nvidia", "/dev/dxg")


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t, which nvmlDeviceGetComputeRunningProcesses_v3 fills in; 24 bytes."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    )


class MemoryInfo(ctypes.Structure):
    """nvmlMemory_t, which nvmlDeviceGetMemoryInfo fills in; bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Nvml:
    """The calls, on a library that tests can replace by a compiled stub."""

    def __init__(
        self, path: str, *, sees_all: bool = True, devices: tuple[str, ...] = DEVICES
    ) -> None:
        """`sees_all`: NVML names processes as this system does. In a container with process ids of
        its own it may not; a process that has one of `devices` open is then unknown, not at 0.

        Raises:
            OSError: there is no such library.
        """
        self._library = ctypes.CDLL(path)
        self._error_string = self._library.nvmlErrorString
        self._error_string.argtypes = (ctypes.c_int,)
        self._error_string.restype = ctypes.c_char_p
        self._sees_all = sees_all
        self._devices = devices
        self._started = False

    def used_bytes(self, pid: int) -> int:
        """What a process holds on all devices; 0 if it has nothing to do with any.

        Raises:
            FootprintError: NVML doesn't say.
        """
        if not self._start():
            return 0
        used_bytes = [
            each.usedGpuMemory
            for device in self._devices_found()
            for each in self._processes(device)
            if each.pid == pid
        ]
        if _NOT_AVAILABLE in used_bytes:
            raise FootprintError(f"pid {pid}: NVML keeps no memory per process on this system")
        if not used_bytes and not self._sees_all and has_open(pid, self._devices):
            raise FootprintError(
                f"pid {pid}: it uses an NVIDIA device, and NVML doesn't list it: the container "
                "needs the host's process ids (docker run --pid=host)"
            )
        return sum(used_bytes)

    def memory(self, pids: Collection[int]) -> CardMemory | None:
        """Of all cards on which one of these processes computes; None if none does.

        Raises:
            FootprintError: NVML doesn't say.
        """
        if not self._start():
            return None
        found = [
            self._memory(device)
            for device in self._devices_found()
            if any(each.pid in pids for each in self._processes(device))
        ]
        if not found:
            return None
        return CardMemory(sum(each.total for each in found), sum(each.free for each in found))

    def _memory(self, device: ctypes.c_void_p) -> MemoryInfo:
        info = MemoryInfo()
        self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(info))
        return info

    def _start(self) -> bool:
        """Whether there is a driver. One that failed to start is asked again the next time."""
        if not self._started:
            status = self._library.nvmlInit_v2()
            if status == _DRIVER_NOT_LOADED:
                return False
            self._check("nvmlInit_v2", status)
            self._started = True
        return True

    def _devices_found(self) -> Iterator[ctypes.c_void_p]:
        count = ctypes.c_uint(0)
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for index in range(count.value):
            device = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
            yield device

    def _processes(self, device: ctypes.c_void_p) -> list[ProcessInfo]:
        name = "nvmlDeviceGetComputeRunningProcesses_v3"
        room = _ROOM
        for _ in range(_TRIES):
            count = ctypes.c_uint(room)
            infos = (ProcessInfo * room)()
            status = self._function(name)(device, ctypes.byref(count), infos)
            if status != _INSUFFICIENT_SIZE:
                self._check(name, status)
                return list(infos[: count.value])
            room = count.value + _ROOM
        raise FootprintError(f"{name}: there are ever more processes")

    def _function(self, name: str) -> Callable[..., int]:
        try:
            function: Any = getattr(self._library, name)
        except AttributeError as error:
            raise FootprintError(f"the NVIDIA driver is too old: it has no {name}") from error
        return function  # type: ignore[no-any-return]

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, self._function(name)(*arguments))

    def _check(self, name: str, status: int) -> None:
        if status != _SUCCESS:
            reason = (self._error_string(status) or b"").decode("utf-8", "replace")
            raise FootprintError(f"{name}: {reason or f'error {status}'}")


def card_bytes(pid: int) -> int:
    """As `Nvml.used_bytes`, on the system's library. Containers may lack it although they have the
    devices (NVIDIA_DRIVER_CAPABILITIES without "utility").
    """
    try:
        nvml = _nvml()
    except OSError as error:
        if has_open(pid, DEVICES):
            raise FootprintError(f"pid {pid}: it uses an NVIDIA device, but {error}") from error
        return 0
    return nvml.used_bytes(pid)


def card_memory(pids: Collection[int]) -> CardMemory | None:
    """As `Nvml.memory`, on the system's library, if there is one."""
    try:
        nvml = _nvml()
    except OSError:
        return None
    return nvml.memory(pids)


def has_open(pid: int, devices: tuple[str, ...]) -> bool:
    """Whether a process has a file open whose path begins with one of these.

    Raises:
        FootprintError: no such process, no permission.
    """
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError as error:
        raise FootprintError(f"pid {pid}: {error.strerror}") from error
    for each in descriptors:
        # It may have been closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if str(each.readlink()).startswith(devices):
                return True
    return False


@functools.cache
def _nvml() -> Nvml:
    namespace = str(Path("/proc/self/ns/pid").readlink())
    return Nvml(LIBRARY, sees_all=namespace == _FIRST_PID_NAMESPACE)
