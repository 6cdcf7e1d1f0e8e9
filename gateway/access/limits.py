"""The limits of a key, a minute and at once, and the usage under each key by days. No I/O."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from msgspec import Struct

from gateway.access.api_key import KeyTerms
from protocol.answers import Usage

MINUTE_S: Final = 60.0
# The amounts of one step expire together, when the latest is a minute old. So the number of entries
# is bounded, and no amount expires too early.
STEP_S: Final = 0.25


class Window:
    """Counts amounts, such as requests. Each amount counts for a minute, and at most a step longer.
    Times are in seconds of a clock that doesn't go back.
    """

    def __init__(self) -> None:
        # The numbers of steps, with the amount of each.
        self._steps: deque[tuple[int, int]] = deque()
        self._taken = 0

    def add(self, now: float, amount: int) -> None:
        step = int(now // STEP_S)
        self._taken += amount
        if self._steps and self._steps[-1][0] == step:
            amount += self._steps.pop()[1]
        self._steps.append((step, amount))

    def taken(self, now: float) -> int:
        while self._steps and _left_at(self._steps[0][0]) <= now:
            self._taken -= self._steps.popleft()[1]
        return self._taken

    def below_s(self, now: float, limit: int) -> float:
        """Seconds until the count is below the limit, if nothing is added."""
        taken = self.taken(now)
        for step, amount in self._steps:
            if taken < limit:
                break
            taken -= amount
            if taken < limit:
                return _left_at(step) - now
        return 0.0


def _left_at(step: int) -> float:
    return (step + 1) * STEP_S + MINUTE_S


class Spending(Protocol):
    """An answer whose tokens count against limits while it is made."""

    @property
    def spent(self) -> Usage | None:
        """The tokens that were computed so far."""

    @property
    def prompt_counts(self) -> bool:
        """Whether the tokens of the prompt count. False for a further answer to the same prompt."""


class Seat:
    """The places that a request's answers take among the answers at once of its key. The last
    holder of the seat frees the places.
    """

    def __init__(self, limits: KeyLimits) -> None:
        self.answers: Sequence[Spending] = ()
        self.places = 1
        self._limits = limits
        self._holders = 1

    @property
    def tokens(self) -> int:
        """Tokens of the request's answers so far. An answer in the key's account counts no more."""
        return sum(map(_tokens, self.answers))

    def reserve(self, answers: Sequence[Spending]) -> Denial | None:
        """Reserve a place for each of these answers. Return None, or why there are too few."""
        denial = self._limits.short_of(len(answers), self.places)
        if denial is None:
            self.count(answers)
        return denial

    def count(self, answers: Sequence[Spending]) -> None:
        """Reserve a place for each answer without a check: the answers were accepted before."""
        self.answers, self.places = answers, len(answers)

    def hold(self) -> None:
        """Add a holder, which must call `release`."""
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._limits.free(self)


def _tokens(answer: Spending) -> int:
    if (usage := answer.spent) is None:
        return 0
    return usage.completion_tokens + (usage.prompt_tokens if answer.prompt_counts else 0)


# A running request may end at any time, so a client may try again soon.
_AGAIN_S: Final = 1


class Denial(Struct, frozen=True):
    """Why a request must wait, as the end of a sentence about its key, and for how many seconds.
    `retry_after_s` None: waiting doesn't help.
    """

    reason: str
    retry_after_s: int | None


class KeyLimits:
    """The limits of one key. Requests count when they arrive, and tokens as they are computed. An
    answer that goes beyond the limit of tokens is finished, and the key's next requests wait.
    """

    def __init__(self, terms: KeyTerms) -> None:
        self.terms = terms
        self._seats: set[Seat] = set()
        self._requests = Window()
        self._tokens = Window()

    def admit(self, now: float) -> Seat | Denial:
        """Take a request in and return its seat, or return why the request must wait."""
        terms = self.terms
        if (denial := self.short_of(1)) is not None:
            return denial
        if terms.rpm is not None and self._requests.taken(now) >= terms.rpm:
            wait_s = self._requests.below_s(now, terms.rpm)
            return Denial(f"has had its {terms.rpm} requests a minute", _whole(wait_s))
        if terms.tpm is not None and self.exhausted(now):
            wait_s = self._tokens.below_s(now, terms.tpm)
            return Denial(f"has had its {terms.tpm} tokens a minute", _whole(wait_s))
        self._requests.add(now, 1)
        return self.seat()

    def seat(self) -> Seat:
        """A seat for an answer that was accepted before, without a check."""
        seat = Seat(self)
        self._seats.add(seat)
        return seat

    def short_of(self, places: int, held: int = 0) -> Denial | None:
        """Why a seat that has `held` places can't have `places` in all; None if it can."""
        most = self.terms.concurrent
        taken = sum(seat.places for seat in self._seats) - held
        if most is None or taken + places <= max(most, held):
            return None
        if places > most:
            return Denial(f"may have {most} answers at once, and this asks for {places}", None)
        return Denial(f"has {most} answers at once already, as many as it may have", _AGAIN_S)

    def free(self, seat: Seat) -> None:
        self._seats.discard(seat)

    def exhausted(self, now: float) -> bool:
        """Whether the tokens of the last minute, with those of running answers, reach the limit."""
        return self.terms.tpm is not None and self._spent(now) >= self.terms.tpm

    def spend(self, now: float, tokens: int) -> None:
        """Count the tokens of an answer that is over."""
        self._tokens.add(now, tokens)

    def _spent(self, now: float) -> int:
        return self._tokens.taken(now) + sum(seat.tokens for seat in self._seats)

    def headers(self, now: float) -> Iterator[tuple[bytes, bytes]]:
        """OpenAI's headers for the limits that are set. The reset tells when the whole limit is
        free.
        """
        for kind, limit, window, taken in (
            (b"requests", self.terms.rpm, self._requests, self._requests.taken),
            (b"tokens", self.terms.tpm, self._tokens, self._spent),
        ):
            if limit is not None:
                left = max(0, limit - taken(now))
                yield b"x-ratelimit-limit-" + kind, b"%d" % limit
                yield b"x-ratelimit-remaining-" + kind, b"%d" % left
                yield b"x-ratelimit-reset-" + kind, b"%ds" % math.ceil(window.below_s(now, 1))


def _whole(seconds: float) -> int:
    """Round up to whole seconds, and to 1 at least: 0 would tell clients to try again at once."""
    return max(1, math.ceil(seconds))


_MONTH: Final = len("2026-11")


class Counts(Struct, frozen=True):
    """Counts of requests and tokens. `cached_tokens` is the part of `prompt_tokens` that came from
    the prompt cache.
    """

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
        """The counts of one request."""
        return cls(1, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)


class Book(Struct):
    """The usage by days, as 2026-11-22, and in each day by the names of keys."""

    days: dict[str, dict[str, Counts]] = {}


class Accounts:
    """The usage under each key in this month and the month before."""

    def __init__(self, book: Book) -> None:
        self.book = book
        # Whether anything was added since the last `pop_changed`.
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
        """The usage under a key in the month of this day."""
        months = (
            names.get(name, Counts())
            for other_day, names in self.book.days.items()
            if other_day[:_MONTH] == day[:_MONTH]
        )
        return sum(months, Counts())

    @property
    def names(self) -> set[str]:
        return {name for names in self.book.days.values() for name in names}

    def pop_changed(self) -> bool:
        """Whether anything was added since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def mark_changed(self) -> None:
        """Have the next `pop_changed` return True: the changes couldn't be written."""
        self._changed = True

    def _forget(self, day: str) -> None:
        oldest = _month_before(day)
        for past in [past for past in self.book.days if past[:_MONTH] < oldest]:
            del self.book.days[past]


def _month_before(day: str) -> str:
    year, month = int(day[:4]), int(day[5:7])
    return f"{year - 1:04}-12" if month == 1 else f"{year:04}-{month - 1:02}"


class KeyUsage(Struct):
    """The usage under one key. `today` and `month` are in the gateway's time zone."""

    name: str
    today: Counts
    month: Counts


class UsageList(Struct):
    keys: list[KeyUsage]
