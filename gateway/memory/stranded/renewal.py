"""When what is known of stranded memory must be written down again. No I/O."""

from __future__ import annotations

from typing import Final

from gateway.memory.stranded.policy import Stranded
from gateway.memory.stranded.record import StrandedRecord

# While workers have something to lose; without them only what has changed is written.
_EVERY_S: Final = 60.0
_MOVED_S: Final = 10.0


class Renewal:
    """Remembers what was written last."""

    def __init__(self) -> None:
        self._written = StrandedRecord()

    def due(self, stranded: Stranded, now: float) -> StrandedRecord | None:
        """What to write at this Unix time, if it is time."""
        record = StrandedRecord(
            stranded.bytes,
            now,
            stranded.floor_bytes,
            stranded.level_bytes,
            tuple(sorted(stranded.proven)),
            tuple(stranded.habits),
            tuple(stranded.claims),
        )
        before = self._written
        changed = _lasting(record) != _lasting(before)
        # The level of a moment ago is of use only to one who finds dead workers.
        moved = _passing(record) != _passing(before)
        wait_s = _MOVED_S if moved else _EVERY_S
        aged = bool(record.claims or before.claims) and not 0.0 <= now - before.at < wait_s
        if before.at and not changed and not aged:
            return None
        self._written = record
        return record


def _lasting(record: StrandedRecord) -> tuple[object, ...]:
    return record.bytes, record.proven, record.habits


def _passing(record: StrandedRecord) -> tuple[object, ...]:
    """What a worker holds changes all the time while it computes."""
    claims = [(each.model_id, each.wired_bytes, each.judged) for each in record.claims]
    return record.level_bytes, claims
