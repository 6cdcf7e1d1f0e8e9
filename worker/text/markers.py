"""Finds the first of some markers in text that comes in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache


class Markers:
    """None of them may be the beginning of another."""

    def __init__(self, markers: Iterable[str]) -> None:
        texts = sorted(set(markers))
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._beginnings = {each[:end] for each in texts for end in range(1, len(each))}
        self._first = frozenset(each[0] for each in texts)
        self.longest = max(map(len, texts), default=0)

    def cut(self, text: str) -> tuple[str, str | None, str]:
        """What is before the first one, that one, what follows it. None: there is none, and what
        follows may be the beginning of one.
        """
        match = None if self._pattern is None else self._pattern.search(text)
        if match is not None:
            return text[: match.start()], match[0], text[match.end() :]
        certain = self._certain(text)
        return text[:certain], None, text[certain:]

    def _certain(self, text: str) -> int:
        """How many characters of a text without markers can't be the beginning of one."""
        if self._first.isdisjoint(text):
            return len(text)
        for at in range(max(0, len(text) - self.longest + 1), len(text)):
            if text[at] in self._first and text[at:] in self._beginnings:
                return at
        return len(text)

    def last_beginning(self, text: str) -> int:
        """Where the last one may begin, after the first character; the length if nowhere."""
        for at in range(len(text) - 1, max(0, len(text) - self.longest), -1):
            if text[at] in self._first:
                return at
        return len(text)


@cache
def markers(texts: tuple[str, ...]) -> Markers:
    return Markers(texts)
