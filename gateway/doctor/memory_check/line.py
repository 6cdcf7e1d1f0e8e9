"""One thing that the product assumes, and what was found."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    AS_ASSUMED = "as assumed"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


class Line(Struct, frozen=True):
    """All are parts of a sentence, without a full stop."""

    part: str
    assumed: str
    found: str
    verdict: Verdict


def line(part: str, assumed: str, found: str, *, holds: bool | None) -> Line:
    """`holds` is None where it can't be told."""
    verdicts = {
        True: Verdict.AS_ASSUMED,
        False: Verdict.DIFFERS,
        None: Verdict.UNKNOWN,
    }
    return Line(part, assumed, found, verdicts[holds])
