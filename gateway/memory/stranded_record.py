"""What is stranded, kept for the next gateway; a boot gives everything back."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

logger = logging.getLogger(__name__)


class StrandedRecord(Struct, frozen=True):
    """`boot` tells one boot from another; `bytes` were stranded."""

    boot: str
    bytes: int


if sys.platform == "linux":

    def present_boot() -> str:
        """What differs between boots and doesn't change within one."""
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()

else:

    def present_boot() -> str:
        """What differs between boots and doesn't change within one."""
        return str(int(psutil.boot_time()))


def read_stranded(path: Path) -> int:
    """Bytes that were found since the present boot; a file that can't be read counts as none."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=StrandedRecord)
    except FileNotFoundError:
        return 0
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("%s is ignored: %s", path, error)
        return 0
    return max(0, record.bytes) if record.boot == present_boot() else 0


def write_stranded(path: Path, bytes_: int) -> None:
    """To be called off the event loop; a full disk is logged."""
    unfinished = path.with_suffix(".new")
    try:
        unfinished.write_bytes(msgspec.json.encode(StrandedRecord(present_boot(), bytes_)))
        unfinished.replace(path)
    except OSError as error:
        logger.warning("%s can't be written: %s", path, error)
