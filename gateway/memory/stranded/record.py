"""What is known of stranded memory, kept for the next gateway; a boot gives everything back."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from gateway.memory.stranded.account import Claim
from gateway.memory.stranded.habits import Shown
from gateway.state.state_file import read_state, write_state
from gateway.system.boot import present_boot


class StrandedRecord(Struct, frozen=True):
    """`bytes` were stranded at the Unix time `at`, when the machine had `level_bytes` wired, and
    `floor_bytes` at the least since its boot; None is not known. `proven` are models that wire what
    they hold and give it back, `habits` what the lives of the models have shown, `claims` what the
    workers had wired.
    """

    bytes: int = 0
    at: float = 0.0
    floor_bytes: int | None = None
    level_bytes: int | None = None
    proven: tuple[str, ...] = ()
    habits: tuple[Shown, ...] = ()
    claims: tuple[Claim, ...] = ()


class _BootRecord(Struct, frozen=True):
    boot: str
    stranded: StrandedRecord


def read_stranded(path: Path) -> StrandedRecord:
    """What was found since the present boot."""
    record = read_state(path, _BootRecord)
    if record is None or record.boot != present_boot():
        return StrandedRecord()
    return record.stranded


def write_stranded(path: Path, record: StrandedRecord) -> None:
    """To be called off the event loop."""
    write_state(path, _BootRecord(present_boot(), record))
