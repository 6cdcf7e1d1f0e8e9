"""What a look at one thing gave."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct


class Severity(StrEnum):
    """From the best to the worst. An error keeps something from working."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(Struct, frozen=True):
    """`subject` is one of several that a check looks at, such as a model. Whatever isn't ok has a
    remedy. Both texts are sentences.
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
    """Ok if there are none."""
    order = list(Severity)
    return max((each.severity for each in findings), key=order.index, default=Severity.OK)
