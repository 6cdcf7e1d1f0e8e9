"""The parts of guessing. A guesser proposes tokens for a step, and may ask a drafter for them. A
checker then draws a token for the position of each guess. A guess is right if it equals that token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import mlx.core as mx

Key = TypeVar("Key")


class RowGuesses(NamedTuple, Generic[Key]):
    """A row, and the guesses that it carries into a step."""

    row: Key
    guesses: Sequence[int]


# Gets rows, and returns a function that draws the guesses of one pass for them. That function gets
# logits, shape (rows, vocabulary), and returns token ids, shape (rows,).
DrawGuesses: TypeAlias = Callable[[Sequence[int]], Callable[[mx.array], mx.array]]


# Has the model compute the logits of token ids, (rows, tokens), with caches. The second result are
# the tokens' states, (rows, tokens, width).
WithStates: TypeAlias = Callable[[mx.array, list[Any]], tuple[mx.array, mx.array]]


class Drafter(Protocol):
    """Computes the logits of guesses, as a small model does.

    A row is `usual_tokens` behind after a step whose guesses were all right. A pass over tokens may
    want the state of the token before each: one of the model, which `with_states` gives, of
    `state_bytes`, and for a guess after another one that of the drafter. None: it wants none.
    """

    usual_tokens: int

    @property
    def with_states(self) -> WithStates | None: ...

    @property
    def state_bytes(self) -> int: ...

    def make_cache(self) -> list[Any]:
        """New caches for one row: mlx-lm's KVCache for each layer."""

    def __call__(
        self, tokens: mx.array, hidden: mx.array | None, cache: list[Any], /
    ) -> tuple[mx.array, mx.array | None]:
        """Logits, (rows, tokens, vocabulary), of token ids, (rows, tokens). `hidden` are the states
        of the tokens before, (rows, tokens, width), and the second result those of the drafter;
        None: it needs none.
        """


class Draft(NamedTuple):
    """A drafter, and the most tokens that it guesses at a time."""

    drafter: Drafter
    tokens: int


# Has the drafter guess so many tokens for each row. Rows may get none, as those that begin.
DraftGuesses: TypeAlias = Callable[[list[int]], list[list[int]]]


class Checker(Protocol):
    """Draws tokens. `__call__` draws the next token of each row: log probabilities (rows,
    vocabulary) to token ids (rows,).
    """

    def __call__(self, logprobs: mx.array, /) -> mx.array: ...

    def possible(self, row: int, guesses: list[int], /) -> list[int]:
        """The guesses of a row up to the first that can't come. All tokens before are known."""

    def check(
        self, logprobs: mx.array, logits: mx.array, rows: Sequence[RowGuesses[int]], /
    ) -> mx.array:
        """Draw a token for the next position of each row, and for the position after each of its
        guesses: both (positions, vocabulary) to token ids (positions,).
        """

    def accept(self, drawn: list[int], /) -> list[int]:
        """Take the tokens that `check` drew. Returns for each row how many guesses are right."""

    def draw_guesses(self, rows: Sequence[int], /) -> Callable[[mx.array], mx.array]:
        """A function that draws guesses for the next tokens of rows, as `DrawGuesses` says."""


class Guesser(Protocol):
    """Guesses tokens, and decides how many of these a step takes. Rows are known by numbers."""

    def is_likely(self, rows: Sequence[int]) -> bool:
        """Whether guesses may pay in the next step, whose first tokens are not known yet."""

    def guess(
        self, rows: Sequence[int], first: Sequence[int], most: Sequence[int], draft: DraftGuesses
    ) -> list[list[int]]:
        """Guesses for the tokens after each row's `first`, at most so many as `most` says."""

    def record(self, row: int, token: int) -> None:
        """Note a token that a row gave out."""


# In place of the tokens a row of a step: a pass of the drafter.
DRAFTED: Final = 0
# Gets the number of rows, the tokens a row, and the seconds from the end of one step to the end of
# the next. For a pass of the drafter the seconds are those of the pass. The seconds of a step leave
# such passes out.
ObserveStep: TypeAlias = Callable[[int, int, float], None]
