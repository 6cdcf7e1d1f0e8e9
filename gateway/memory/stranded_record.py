"""What is stranded, kept for the next gateway; a boot gives everything back."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from gateway.boot import present_boot
from gateway.state_file import read_state, write_state


class StrandedRecord(Struct, frozen=True):
    """`bytes` were stranded, and beside them `base_bytes` belonged to no process; None is not
    known.
    """

    bytes: int = 0
    base_bytes: int | None = None


class _BootRecord(Struct, frozen=True):
    boot: str
    stranded: StrandedRecord


def read_stranded(path: Path) -> StrandedRecord:
    """What was found since the present boot."""
    record = read_state(path, _BootRecord)
    if record is None or record.boot != present_boot():
        return StrandedRecord()
    return StrandedRecord(max(0, record.stranded.bytes), record.stranded.base_bytes)


def write_stranded(path: Path, record: StrandedRecord) -> None:
    """To be called off the event loop."""
    write_state(path, _BootRecord(present_boot(), record))
