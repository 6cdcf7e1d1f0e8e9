"""Every check in turn, each with a deadline; none can keep the others from being made."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from gateway.doctor.finding import Finding, warning
from gateway.doctor.installation import Installation


class Check(Struct, frozen=True):
    """`deadline_s`, between two findings, is generous: the machine may be busy."""

    name: str
    look: Callable[[Installation], Iterable[Finding]]
    deadline_s: float = 20.0


def findings(check: Check, installation: Installation) -> Iterator[Finding]:
    """What it finds, while it does. A failure of the check itself is a finding too."""
    found: queue.Queue[Finding | None] = queue.Queue()

    def look() -> None:
        try:
            for finding in check.look(installation):
                found.put(finding)
        except Exception as failure:
            why = " ".join(f"{type(failure).__name__}: {failure}".split())
            found.put(_not_looked_at(check, why))
        found.put(None)

    # Not waited for at the end of the program: it may hang on a disk.
    threading.Thread(target=look, name=check.name, daemon=True).start()
    try:
        while (finding := found.get(timeout=check.deadline_s)) is not None:
            yield finding
    except queue.Empty:
        yield _not_looked_at(check, f"no answer within {check.deadline_s:g} s")


def _not_looked_at(check: Check, why: str) -> Finding:
    return warning(
        check.name,
        f"It could not be looked at: {why.rstrip('.')}.",
        "Try again, with the machine less busy if it was too slow; the reason may say more.",
    )
