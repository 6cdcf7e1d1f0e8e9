"""What ended workers have given back, judged by the machine's wired pages."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.events import EventLog
from gateway.memory.ledger import Ledger
from gateway.memory.stranded.policy import Reading, Stranded
from gateway.memory.stranded.record import StrandedRecord
from gateway.memory.stranded.renewal import Renewal


class Returns:
    """On the event loop. What didn't come back is taken off the budget."""

    def __init__(
        self,
        stranded: Stranded | None,
        ledger: Ledger,
        events: EventLog,
        lost: Callable[[str, int], None],
        keep: Callable[[StrandedRecord], None],
    ) -> None:
        """`stranded` None: nothing is lost here. `lost` is told of a model and the bytes that its
        worker left; `keep` is to write a record down.
        """
        self._stranded = stranded
        self._ledger = ledger
        self._events = events
        self._lost = lost
        self._keep = keep
        self._renewal = Renewal()
        if stranded is not None:
            ledger.stranded_bytes = stranded.bytes

    def ended(self, pid: int, now: float, *, clean: bool) -> None:
        """A worker's process has ended, by itself if `clean`."""
        if self._stranded is not None:
            self._stranded.ended(pid, now, clean=clean)

    def observe(self, reading: Reading) -> bool:
        """Returns whether there is more or less to lend than before."""
        stranded, ledger = self._stranded, self._ledger
        if stranded is None:
            return False
        before_bytes = stranded.bytes
        for finding in stranded.observe(reading):
            self._events.emit(
                "return",
                finding.model_id,
                held_bytes=finding.held_bytes,
                missing_bytes=finding.missing_bytes,
                wired_bytes=reading.wired_bytes,
            )
            self._lost(finding.model_id, finding.missing_bytes)
        if stranded.bytes != before_bytes:
            self._events.emit("stranded", None, stranded_bytes=stranded.bytes)
        # What may still be on its way back is lent to nobody.
        withheld_bytes = stranded.bytes + stranded.undecided_bytes
        moved = withheld_bytes != ledger.stranded_bytes
        ledger.stranded_bytes = withheld_bytes
        ledger.undecided_bytes = stranded.undecided_bytes
        record = self._renewal.due(stranded, time.time())
        if record is not None:
            self._keep(record)
        return moved
