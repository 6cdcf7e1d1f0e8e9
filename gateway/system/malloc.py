"""How freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

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
