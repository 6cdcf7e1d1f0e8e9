"""Checks and their findings: each check runs with a deadline."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from msgspec import Struct

from gateway.doctor.installation import Installation


class Severity(StrEnum):
    """The severities, from the best to the worst. An error means that something doesn't work."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(Struct, frozen=True):
    """A result of a check. `subject` names the thing that the finding is about, such as a model, if
    the check looks at several. A warning or an error has a remedy. Evidence and remedy are
    sentences.
    """

    check: str
    severity: Severity
    evidence: str
    remedy: str | None = None
    subject: str | None = None


def ok(check: str, evidence: str, *, subject: str | None = None) -> Finding:
    return Finding(check, Severity.OK, evidence, None, subject)


def warning(check: str, evidence: str, remedy: str, *, subject: str | None = None) -> Finding:
    return Finding(check, Severity.WARNING, evidence, remedy, subject)


def error(check: str, evidence: str, remedy: str, *, subject: str | None = None) -> Finding:
    return Finding(check, Severity.ERROR, evidence, remedy, subject)


def worst(findings: Iterable[Finding]) -> Severity:
    """The worst severity of the findings; OK if there are none."""
    order = list(Severity)
    return max((finding.severity for finding in findings), key=order.index, default=Severity.OK)


class Observation(Struct, frozen=True):
    """A part of a sentence, by a probe of `doctor --mac`. `holds`: the assumption holds; None: that
    isn't judged.
    """

    text: str
    holds: bool | None = None


class Check(Struct, frozen=True):
    """A check. `deadline_s` is the longest wait for its next finding, also on a busy machine."""

    name: str
    look: Callable[[Installation], Iterable[Finding]]
    deadline_s: float = 20.0


def findings(check: Check, installation: Installation) -> Iterator[Finding]:
    """Run a check on a thread, and yield its findings. A failure of the check is a finding, too."""
    finding_queue: queue.Queue[Finding | None] = queue.Queue()

    def look() -> None:
        try:
            for finding in check.look(installation):
                finding_queue.put(finding)
        except Exception as failure:
            why = " ".join(f"{type(failure).__name__}: {failure}".split())
            finding_queue.put(_not_looked_at(check, why))
        finding_queue.put(None)

    # A daemon thread, since a disk may let the check hang.
    threading.Thread(target=look, name=check.name, daemon=True).start()
    try:
        while (finding := finding_queue.get(timeout=check.deadline_s)) is not None:
            yield finding
    except queue.Empty:
        yield _not_looked_at(check, f"no answer within {check.deadline_s:g} s")


def _not_looked_at(check: Check, why: str) -> Finding:
    return warning(
        check.name,
        f"The check failed: {why.rstrip('.')}.",
        "Try again; if the check was too slow, when the machine is less busy.",
    )
