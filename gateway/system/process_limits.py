"""The limit of open files, and when freed memory goes back to the system: for this process."""

from __future__ import annotations

import ctypes
import resource
import sys
from typing import Final

# The highest limit of open files that macOS accepts: OPEN_MAX of <sys/syslimits.h>.
MOST_FILES: Final = 10240


# mlx-lm sets this limit of open files when it is imported (mlx_lm/utils.py). If the hard limit is
# lower, no worker can start.
LEAST_FILES: Final = 4096

# Descriptors for the log, the listener, the event loop, ZeroMQ, files that are read, and
# connections that are accepted before the descriptors of closed ones are free.
_OWN_FILES: Final = 96
# Descriptors for a worker: for its output, its log, its record, the sockets of its endpoint, and
# the files that are opened to measure its memory.
_FILES_PER_WORKER: Final = 16


def needed_files(workers: int) -> int:
    """The most files that a gateway of so many workers opens, besides its clients' connections."""
    return _OWN_FILES + _FILES_PER_WORKER * workers


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
