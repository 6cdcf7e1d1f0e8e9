"""What the operating system says, allows and does: boots, open files, freed memory, sleep, disks.

macOS keeps some files from a program although their permissions allow it: folders such as Desktop
and every removable disk want somebody's agreement at the screen. A program that launchd starts
without that agreement is never asked: it gets EPERM, where permissions give EACCES.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.system.lane import start_thread

if sys.platform == "linux":

    def present_boot() -> str:
        """What differs between boots and doesn't change within one."""
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()

else:
    import functools

    from gateway.system.memory_darwin import SysctlByName

    @functools.cache
    def present_boot() -> str:
        """What differs between boots and doesn't change within one.

        Not kern.boottime, which psutil tells: it is moved whenever the clock is set.
        """
        return SysctlByName().text("kern.bootsessionuuid")


# macOS refuses more than OPEN_MAX (<sys/syslimits.h>).
MOST_FILES: Final = 10240


# What mlx-lm sets as it is imported (mlx_lm/utils.py): with a lower hard limit no worker can start.
LEAST_FILES: Final = 4096


def attainable_files() -> int:
    """What a gateway that is started from here can raise its limit to; macOS begins with 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    attainable = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    return attainable if soft == resource.RLIM_INFINITY else max(soft, attainable)


def raise_file_limit() -> None:
    """Raise it that far.

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
    """Have glibc map what is larger than a megabyte, as the bodies of long prompts, and unmap it
    when it is freed. By itself it raises that bound to 32 MB with the sizes that it has seen freed
    (mallopt(3)): then what one thread has freed stays with that thread. Other systems' allocators
    need no such word.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # Other C libraries have none.
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)


logger = logging.getLogger(__name__)

# By system, before this process's id. `-w`: it ends with the gateway, however that ends
# (caffeinate(8)). Elsewhere nothing is held.
_COMMANDS: Final = {"darwin": ("/usr/bin/caffeinate", "-i", "-w")}
# From one request of an agent to the next it isn't worth another process.
_LINGER_S: Final = 10.0
# Until it is begun again where it has ended by itself.
_AGAIN_S: Final = 60.0


class Wakefulness:
    """To be told a few times a second whether there is work. `now` is in seconds."""

    def __init__(self) -> None:
        self._command = _COMMANDS.get(sys.platform)
        self._assertion: subprocess.Popen[bytes] | None = None
        self._wanted_until = self._not_before = float("-inf")

    def tick(self, now: float, *, works: bool) -> None:
        if works:
            self._wanted_until = now + _LINGER_S
        wanted = now < self._wanted_until
        if self._assertion is not None and self._assertion.poll() is not None:
            logger.warning("The machine may sleep: caffeinate has ended by itself.")
            self._assertion, self._not_before = None, now + _AGAIN_S
        if not wanted:
            self.end()
        elif self._assertion is None and self._command is not None and now >= self._not_before:
            self._not_before = now + _AGAIN_S
            self._assertion = _begin(self._command)

    def end(self) -> None:
        if self._assertion is not None:
            self._assertion.terminate()
            self._assertion, self._not_before = None, float("-inf")


def _begin(command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Raises: OSError."""
    assertion = subprocess.Popen(
        [*command, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # As workers are started: by posix_spawn on macOS.
        close_fds=False,
    )
    try:
        start_thread(assertion.wait, "awake")
    except OSError:
        assertion.kill()
        assertion.wait()
        raise
    return assertion


# With how many names below it make a disk's folder: Linux has one for each account.
_PARENTS: Final = ((Path("/Volumes"), 1), (Path("/media"), 2), (Path("/run/media"), 2))


class AwayError(ValueError):
    """A disk isn't mounted; the text is a sentence that says what to do."""

    def __init__(self, volume: Path) -> None:
        super().__init__(
            f"The disk {volume} isn't mounted: connect it, or unlock it; the model can be loaded "
            "as soon as it is there."
        )
        self.volume = volume


def volume_of(path: Path) -> Path | None:
    """The folder that the disk is mounted at; None for what is on the machine's own."""
    for parent, names in _PARENTS:
        if path.is_relative_to(parent) and len(parts := path.relative_to(parent).parts) > names:
            return parent.joinpath(*parts[:names])
    return None


def is_mounted(volume: Path) -> bool:
    """Blocks as long as the disk takes. macOS has a link for the one that it was started from, and
    leaves a folder now and then where a disk was.
    """
    if os.path.islink(volume):  # noqa: PTH114 - unlike Path's, these never raise.
        return os.path.exists(volume)  # noqa: PTH110
    return os.path.ismount(volume)


def away(path: Path) -> AwayError | None:
    """Why there is nothing at a path: its disk isn't there. None: it is, or it was none."""
    volume = volume_of(path)
    if volume is None or os.path.lexists(path) or is_mounted(volume):
        return None
    return AwayError(volume)


class DeniedError(ValueError):
    """The system keeps files from this program; the text is a sentence that says what to do."""


def denied(error: BaseException) -> str | None:
    """A sentence that says what to do; None if that isn't what is wrong."""
    for each in _chain(error):
        if isinstance(each, OSError) and each.errno == errno.EPERM:
            return _sentence(each.filename)
    return None


def is_denied(path: str | os.PathLike[str]) -> bool:
    """Whether not even a look at it is allowed."""
    try:
        os.stat(path)  # noqa: PTH116 - a path that is no good raises the same in both.
    except (OSError, ValueError) as error:
        return denied(error) is not None
    return False


def _sentence(path: object) -> str:
    return (
        f"The system keeps {path or 'its files'} from this program, although permissions allow it "
        "(operation not permitted). On macOS: System Settings, Privacy & Security, Full Disk "
        f"Access, add {os.path.realpath(sys.executable)}, then `bulkhead service restart`."
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
