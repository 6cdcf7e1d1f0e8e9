"""What stands where two texts part: a clock, a date, a path, an id, a counter. Patterns tell, so it
is a guess, which readers can check by the texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from gateway.why.divergence import Divergence

Swap: TypeAlias = Literal["clock", "date", "path", "id", "counter"]

_MONTH: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DAY: Final = r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b"
# In this order, as a path may contain an id, and an id digits.
_PATTERNS: Final[tuple[tuple[Swap, str], ...]] = (
    # 9:05, 12:01:33.5 PM, 3pm, and seconds or milliseconds since 1970.
    ("clock", r"(?:\b|(?<=T))\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[AaPp][Mm]\b)?"),
    ("clock", r"\b\d{1,2}\s?[AaPp][Mm]\b|(?<![\w.])1[5-9]\d{8}(?:\d{3})?(?!\d)"),
    ("date", r"\b\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\b\d{1,2}[/.]\d{1,2}[/.]\d{2,4}"),
    ("date", rf"\b{_MONTH}\.? \d{{1,2}}(?:,? \d{{4}})?|\b\d{{1,2}}\.? {_MONTH}(?: \d{{4}})?"),
    ("date", rf"{_DAY}|\b{_MONTH} \d{{4}}"),
    ("path", r"(?:[A-Za-z]:\\|~?/|\./|file://)[^\s\"'<>`|]+"),
    ("id", r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"),
    ("id", r"\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{8,}"),
    ("counter", r"\d[\d,._]*"),
)
_COMPILED: Final = tuple((swap, re.compile(pattern)) for swap, pattern in _PATTERNS)


def swapped(place: Divergence) -> tuple[Swap, str, str] | None:
    """What was put in the place of what: its kind, and both texts. None: no pattern fits."""
    if place.old is None or place.new is None:
        return None
    old, new = place.old, place.new
    for swap, pattern in _COMPILED:
        for before in _across(pattern, old.before + old.behind, len(old.before), place.within):
            for after in _across(pattern, new.before + new.behind, len(new.before), place.within):
                if before != after:
                    return swap, before, after
    return None


def _across(pattern: re.Pattern[str], text: str, at: int, within: int) -> Iterator[str]:
    """The matches that contain the place `at`, or touch it from the left."""
    for match in pattern.finditer(text):
        if match.start() <= at + within and match.end() >= at:
            yield match[0]
