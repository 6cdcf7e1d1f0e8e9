"""What one request has of its key's limits while it, or what goes on behind it, isn't over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from protocol.answers import Usage

if TYPE_CHECKING:
    from gateway.access.limits import Denial, Limits


class Spending(Protocol):
    """An answer that is being made."""

    @property
    def spent(self) -> Usage | None:
        """What was computed so far."""

    @property
    def prompt_counts(self) -> bool:
        """It isn't one more answer to the same prompt."""


class Seat:
    """A place for each of its answers. The last who holds it gives them back."""

    def __init__(self, limits: Limits) -> None:
        self.answers: Sequence[Spending] = ()
        self.places = 1
        self._limits = limits
        self._holders = 1

    @property
    def tokens(self) -> int:
        """What its answers took so far; without those that are in a key's account already."""
        return sum(map(_tokens, self.answers))

    def take(self, answers: Sequence[Spending]) -> Denial | None:
        """A place for each of these; or why there aren't so many."""
        denial = self._limits.short_of(len(answers), self.places)
        if denial is None:
            self.count(answers)
        return denial

    def count(self, answers: Sequence[Spending]) -> None:
        """The same for what was accepted before."""
        self.answers, self.places = answers, len(answers)

    def hold(self) -> None:
        """For one more, who releases it."""
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._limits.leave(self)


def _tokens(answer: Spending) -> int:
    if (usage := answer.spent) is None:
        return 0
    return usage.completion_tokens + (usage.prompt_tokens if answer.prompt_counts else 0)
