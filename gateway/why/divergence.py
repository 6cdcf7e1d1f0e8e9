"""Where two texts part, from what is remembered of them."""

from __future__ import annotations

from array import array
from typing import Final, TypeVar

from msgspec import Struct

from gateway.why.sections import PIECE, PromptSection, hashes

# An excerpt has so many characters before the place where two texts part, and behind it.
BEFORE: Final = 60
BEHIND: Final = 100

Series = TypeVar("Series", str, "array[int]", tuple[int, ...])


def common_length(one: Series, other: Series) -> int:
    """The number of elements that both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Excerpt(Struct, frozen=True):
    """A part of a text around the place where it parts from another: the text before the place, and
    the text behind it.
    """

    before: str
    behind: str


class Divergence(Struct, frozen=True):
    """Where two texts part: at character `at`, or within `within` characters behind it. An excerpt
    is None if that part of the text was not remembered.
    """

    at: int
    within: int
    old: Excerpt | None
    new: Excerpt | None


def divergence_of(old: PromptSection, new: PromptSection) -> Divergence:
    """Where the texts of two sections part."""
    at, within = _parting(old, new)
    return Divergence(at, within, _excerpt(old, at, within), _excerpt(new, at, within))


def _parting(old: PromptSection, new: PromptSection) -> tuple[int, int]:
    at = common_length(old.begin, new.begin)
    if at < min(len(old.begin), len(new.begin)) or (old.whole and at == old.length):
        return at, 0
    if new.whole and at == new.length:
        return at, 0
    # One text is remembered only in part, and the parts are the same.
    pieces = _pieces(old), _pieces(new)
    same = common_length(*pieces)
    begin, least = PIECE * same, min(old.length, new.length)
    if begin >= least:
        return least, 0
    if same == min(map(len, pieces)):
        return begin, least - begin  # There are no hashes for the rest.
    exact = _exact(old, new, begin)
    return (max(at, begin), PIECE) if exact is None else (exact, 0)


def _exact(old: PromptSection, new: PromptSection, begin: int) -> int | None:
    """The exact place in the piece at `begin`, if that piece of both texts is remembered."""
    pieces = _part(old, begin, begin + PIECE), _part(new, begin, begin + PIECE)
    if pieces[0] is None or pieces[1] is None:
        return None
    return begin + common_length(pieces[0], pieces[1])


def _pieces(section: PromptSection) -> array[int]:
    return hashes(section.begin) if section.whole else section.pieces


def _excerpt(section: PromptSection, at: int, within: int) -> Excerpt | None:
    before = _part(section, max(0, at - BEFORE), at)
    behind = _part(section, at, min(section.length, at + within + BEHIND))
    return None if before is None or behind is None else Excerpt(before, behind)


def _part(section: PromptSection, begin: int, end: int) -> str | None:
    """The characters of a text from `begin` to `end`; None: they aren't remembered."""
    end = min(end, section.length)
    if end <= len(section.begin):
        return section.begin[begin:end]
    first = section.length - len(section.end)
    return section.end[begin - first : end - first] if begin >= first else None
