"""What an earlier gateway of the same boot has known is taken up before anything is loaded."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

from gateway.memory.host import host_memory
from gateway.memory.stranded.policy import Stranded
from gateway.memory.stranded.record import StrandedRecord, read_stranded

# The figures of a gateway that died are renewed every minute; after more than that and a restart,
# too much else can have moved while nobody looked.
FRESH_S: Final = 120.0


def stranded_at_start(
    path: Path, *, follows_crash: bool, platform: str = sys.platform
) -> Stranded | None:
    """None where nothing is ever stranded: wired pages are of that kind on macOS alone."""
    if platform != "darwin":
        return None
    record = read_stranded(path)
    return take_up(record, host_memory().total_bytes, time.time(), follows_crash=follows_crash)


def take_up(
    record: StrandedRecord, total_bytes: int, now: float, *, follows_crash: bool
) -> Stranded:
    """With the Unix time. The workers of a gateway that crashed moments ago have ended unseen, and
    their ends are judged as if they were seen now.
    """
    stranded = Stranded(total_bytes, max(0, record.bytes))
    unseen = follows_crash and 0.0 <= now - record.at <= FRESH_S
    stranded.resume(
        record.floor_bytes,
        record.level_bytes if unseen else None,
        record.proven,
        record.habits,
        record.claims if unseen else (),
    )
    return stranded
