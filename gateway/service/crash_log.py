"""Bounds the file that launchd writes to: it holds the file open, so nobody else can rotate it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_LONGEST_BYTES: Final = 4 << 20
_KEPT_BYTES: Final = 1 << 20


def bound(path: Path, descriptor: int = 2) -> None:
    """If stderr is this file and it has grown large, keep only its end. For the start."""
    try:
        size_bytes = os.fstat(descriptor).st_size
        if not os.path.samestat(os.fstat(descriptor), path.stat()) or size_bytes <= _LONGEST_BYTES:
            return
        with path.open("rb") as log:
            log.seek(-_KEPT_BYTES, os.SEEK_END)
            end = log.read().partition(b"\n")[2]
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, end)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("%s can't be kept small: %s", path, error)
