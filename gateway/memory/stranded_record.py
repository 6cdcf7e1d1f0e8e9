"""What is stranded, kept for the next gateway; a boot gives everything back."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from gateway.boot import present_boot
from gateway.state_file import read_state, write_state


class StrandedRecord(Struct, frozen=True):
    """`boot` tells one boot from another; `bytes` were stranded."""

    boot: str
    bytes: int


def read_stranded(path: Path) -> int:
    """Bytes that were found since the present boot."""
    record = read_state(path, StrandedRecord)
    if record is None or record.boot != present_boot():
        return 0
    return max(0, record.bytes)


def write_stranded(path: Path, bytes_: int) -> None:
    """To be called off the event loop."""
    write_state(path, StrandedRecord(present_boot(), bytes_))
