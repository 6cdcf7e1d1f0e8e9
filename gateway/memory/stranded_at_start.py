"""What a gateway that died has left stranded: looked for before anything is loaded.

Nobody watched its workers end. What can be told is what belongs to no process now, beside what did
while all was well; the last gateway of the same boot has kept that figure.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from gateway.config.sizes import format_size
from gateway.memory.host import host_memory, resident_bytes
from gateway.memory.stranded import beyond_noise
from gateway.memory.stranded_record import StrandedRecord, read_stranded, write_stranded

logger = logging.getLogger(__name__)

# The end of a large process takes seconds, and its memory comes back after its exit is known.
_SETTLES_S: Final = 5.0
_LOOK_S: Final = 0.25


def stranded_at_start(path: Path, *, follows_crash: bool) -> int:
    """Bytes. Blocks for some ten milliseconds; for up to 5 s if something seems to be missing."""
    record = read_stranded(path)
    if not follows_crash or record.base_bytes is None:
        write_stranded(path, StrandedRecord(record.bytes, _unowned_bytes() - record.bytes))
        return record.bytes
    deadline = time.monotonic() + _SETTLES_S
    missing = _missing_bytes(record)
    while missing > record.bytes and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        missing = _missing_bytes(record)
    if missing <= record.bytes:
        return record.bytes
    logger.warning(
        "%s belong to no process since the last gateway died: they are taken off the budget",
        format_size(missing),
    )
    write_stranded(path, StrandedRecord(missing, record.base_bytes))
    return missing


def _missing_bytes(record: StrandedRecord) -> int:
    above_bytes = _unowned_bytes() - (record.base_bytes or 0)
    return beyond_noise(above_bytes, host_memory().total_bytes)


def _unowned_bytes() -> int:
    host = host_memory()
    return host.total_bytes - host.available_bytes - resident_bytes(())
