"""The operating system: boots, open files, freed memory, sleep, disks, and systemd's notifications.

macOS denies a program some files although their permissions allow access: for folders such as
Desktop and for every removable disk a user must agree on the screen. Without that agreement a
program that launchd starts gets EPERM. A lack of permissions gives EACCES.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Final

import psutil

from gateway.system.child import Child

if sys.platform == "linux":

    def present_boot() -> str:
        """An identifier of the present boot."""
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()

else:
    import functools

    from gateway.system.memory_darwin import Sysctl

    @functools.cache
    def present_boot() -> str:
        """An identifier of the present boot. kern.boottime, which psutil reads, would not do: it
        changes whenever the clock is set.
        """
        return Sysctl().text("kern.bootsessionuuid")


# The highest limit of open files that macOS accepts: OPEN_MAX of <sys/syslimits.h>.
MOST_FILES: Final = 10240


# mlx-lm sets this limit of open files when it is imported (mlx_lm/utils.py). If the hard limit is
# lower, no worker can start.
LEAST_FILES: Final = 4096


def attainable_files() -> int:
    """The limit of open files that a gateway can give itself here. On macOS it starts with 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    attainable = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    return attainable if soft == resource.RLIM_INFINITY else max(soft, attainable)


def raise_file_limit() -> None:
    """Raise the limit of open files to `attainable_files`.

    Raises:
        OSError, ValueError: the system refuses.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < attainable_files():
        resource.setrlimit(resource.RLIMIT_NOFILE, (attainable_files(), hard))


# <malloc.h>
_M_MMAP_THRESHOLD: Final = -3
_THRESHOLD_BYTES: Final = 1 << 20


def give_large_buffers_back() -> None:
    """Have glibc map each buffer of a megabyte or more, such as a long prompt, and unmap it when it
    is freed. By default glibc raises this threshold to the size of a freed buffer, up to 32 MB
    (mallopt(3)), and keeps the memory that a thread has freed for that thread. The allocators of
    other systems need no such setting.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        # Other C libraries have no mallopt.
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)


logger = logging.getLogger(__name__)

# The command that keeps the machine awake, by system. The gateway's pid is appended: with `-w`
# caffeinate ends when that process ends (caffeinate(8)). Other systems have no command.
_COMMANDS: Final = {"darwin": ("/usr/bin/caffeinate", "-i", "-w")}
# A client's next request often comes within this time. The command then still runs.
_LINGER_S: Final = 10.0
# The least time between two starts of the command if it ends by itself.
_AGAIN_S: Final = 60.0


class Wakefulness:
    """Keeps the machine from sleep while there is work. Call `tick` a few times a second, with the
    time in seconds.
    """

    def __init__(self) -> None:
        self._command = _COMMANDS.get(sys.platform)
        self._assertion: Child | None = None
        self._wanted_until = self._not_before = float("-inf")

    def tick(self, now: float, *, works: bool) -> None:
        if works:
            self._wanted_until = now + _LINGER_S
        wanted = now < self._wanted_until
        if self._assertion is not None and self._assertion.status is not None:
            logger.warning("The machine may sleep: caffeinate has ended by itself.")
            self._assertion, self._not_before = None, now + _AGAIN_S
        if not wanted:
            self.end()
        elif self._assertion is None and self._command is not None and now >= self._not_before:
            self._not_before = now + _AGAIN_S
            self._assertion = Child(
                [*self._command, str(os.getpid())],
                "awake",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def end(self) -> None:
        if self._assertion is not None:
            self._assertion.signal(signal.SIGTERM)
            self._assertion, self._not_before = None, float("-inf")


# Folders in which disks are mounted, and how many further names lead to a disk: on Linux such a
# folder may have a folder for each account.
_PARENTS: Final = ((Path("/Volumes"), 1), (Path("/media"), 2), (Path("/run/media"), 2))


class AwayError(ValueError):
    """A disk isn't mounted. The text is a sentence that says what to do."""

    def __init__(self, volume: Path) -> None:
        super().__init__(
            f"The disk {volume} isn't mounted: connect it, or unlock it; the model can be loaded "
            "as soon as it is there."
        )
        self.volume = volume


def volume_of(path: Path) -> Path | None:
    """The folder at which the disk of a path is mounted; None for the machine's own disk."""
    for parent, names in _PARENTS:
        if path.is_relative_to(parent) and len(parts := path.relative_to(parent).parts) > names:
            return parent.joinpath(*parts[:names])
    return None


def is_mounted(volume: Path) -> bool:
    """Whether a disk is mounted at `volume`. Blocks until the disk answers. In /Volumes macOS has a
    link for its start disk, and sometimes leaves a folder where a disk was.
    """
    if os.path.islink(volume):  # noqa: PTH114 - Path.is_symlink can raise.
        return os.path.exists(volume)  # noqa: PTH110
    return os.path.ismount(volume)


def away(path: Path) -> AwayError | None:
    """The error for a missing path whose disk isn't mounted; None for any other path."""
    volume = volume_of(path)
    if volume is None or os.path.lexists(path) or is_mounted(volume):
        return None
    return AwayError(volume)


class DeniedError(ValueError):
    """The system denies this program some files. The text is a sentence that says what to do."""


def denied(error: BaseException) -> str | None:
    """A sentence that says what to do if the system denied a file; None for another error."""
    for each in _chain(error):
        if isinstance(each, OSError) and each.errno == errno.EPERM:
            return _sentence(each.filename)
    return None


def is_denied(path: str | os.PathLike[str]) -> bool:
    """Whether the system denies this program even the status of the path."""
    try:
        os.stat(path)  # noqa: PTH116 - Path.stat raises the same errors.
    except (OSError, ValueError) as error:
        return denied(error) is not None
    return False


def _sentence(path: object) -> str:
    return (
        f"The system keeps {path or 'its files'} from this program, although permissions allow it "
        "(operation not permitted). On macOS: System Settings, Privacy & Security, Full Disk "
        f"Access, add {program()}, then `bulkhead service restart`."
    )


def program() -> str:
    """The file of the program that this process runs, which is what macOS's privacy settings list.
    A framework build of Python runs its Resources/Python.app instead of `sys.executable`.
    """
    try:
        return psutil.Process().exe() or os.path.realpath(sys.executable)
    except psutil.Error:
        return os.path.realpath(sys.executable)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


_US_PER_S: Final = 1_000_000
# A sign of life is due after half of the watchdog's time, as sd_watchdog_enabled(3) recommends.
_SHARE: Final = 0.5


class Notifier:
    """Tells systemd the state of the gateway, by the protocol of sd_notify(3). Without systemd
    every call does nothing. No call blocks: a message that can't be sent at once is lost.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        """`address` is the path of systemd's socket, or `@` and a name in the abstract namespace.
        After `watchdog_s` without a sign of life systemd ends the process. A sign of life is due
        every `period_s`; None: systemd expects none.
        """
        self._address = address.replace("@", "\0", 1) if address else None
        self._given = (address, watchdog_s)
        self.period_s = None if watchdog_s is None or address is None else watchdog_s * _SHARE
        # The socket stays open: a sign of life must not fail for want of a descriptor.
        self._socket: socket.socket | None = None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Notifier:
        """A notifier by systemd's variables, which are removed: workers must not get them."""
        address = environment.pop("NOTIFY_SOCKET", None)
        meant_for = environment.pop("WATCHDOG_PID", None)
        watchdog_us = environment.pop("WATCHDOG_USEC", "")
        ours = meant_for in (None, str(os.getpid()))
        watched = ours and watchdog_us.isdigit() and int(watchdog_us) > 0
        return cls(address, int(watchdog_us) / _US_PER_S if watched else None)

    @property
    def environment(self) -> dict[str, str]:
        """The variables from which the next gateway makes its notifier."""
        address, watchdog_s = self._given
        if address is None:
            return {}
        given = {"NOTIFY_SOCKET": address}
        if watchdog_s is not None:
            given["WATCHDOG_USEC"] = str(round(watchdog_s * _US_PER_S))
        return given

    def silence(self) -> None:
        """Send nothing more: another gateway speaks for the service."""
        self._address = None

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Say that the configuration is being read again; `ready` says that this is done."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    async def sign_of_life(self) -> None:
        """The event loop must call this every `period_s`, unless `period_s` is None."""
        self._send("WATCHDOG=1")

    def _send(self, *assignments: str) -> None:
        if self._address is None:
            return
        # A newline ends an assignment, so values must have none.
        text = "\n".join(each.replace("\n", " ") for each in assignments)
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            self._socket.sendto(text.encode(), self._address)
        except OSError as error:
            logger.warning("systemd isn't told %r: %s", assignments[0], error)
