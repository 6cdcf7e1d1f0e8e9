"""How many files a gateway may hold open: each client and each worker takes some."""

from __future__ import annotations

import resource
from typing import Final

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
