"""What was used under each key, by days. No I/O; the caller brings the day."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from protocol.answers import Usage

_MONTH: Final = len("2026-11")


class Counts(Struct, frozen=True):
    """`cached_tokens` of the prompts' were not computed anew."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
        )

    @classmethod
    def of(cls, usage: Usage) -> Counts:
        """Of one request."""
        return cls(1, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)


class Book(Struct):
    """Days as 2026-11-22, and in each the counts of keys by their names."""

    days: dict[str, dict[str, Counts]] = {}


class Accounts:
    """Keeps the days of this month and of the one before."""

    def __init__(self, book: Book) -> None:
        self.book = book
        # What was added since `take_changed`.
        self._changed = False

    def add(self, day: str, name: str, counts: Counts) -> None:
        if day not in self.book.days:
            self._forget(day)
        names = self.book.days.setdefault(day, {})
        names[name] = names.get(name, Counts()) + counts
        self._changed = True

    def on(self, day: str, name: str) -> Counts:
        return self.book.days.get(day, {}).get(name, Counts())

    def in_month(self, day: str, name: str) -> Counts:
        """Of the month that the day is in."""
        months = (
            names.get(name, Counts())
            for each, names in self.book.days.items()
            if each[:_MONTH] == day[:_MONTH]
        )
        return sum(months, Counts())

    @property
    def names(self) -> set[str]:
        return {name for names in self.book.days.values() for name in names}

    def take_changed(self) -> bool:
        """Whether anything was added since it was asked last."""
        changed, self._changed = self._changed, False
        return changed

    def note_lost(self) -> None:
        """What was taken as changed is not kept yet."""
        self._changed = True

    def _forget(self, day: str) -> None:
        oldest = _month_before(day)
        for each in [each for each in self.book.days if each[:_MONTH] < oldest]:
            del self.book.days[each]


def _month_before(day: str) -> str:
    year, month = int(day[:4]), int(day[5:7])
    return f"{year - 1:04}-12" if month == 1 else f"{year:04}-{month - 1:02}"
