"""A row of a batch that decodes, its tokens, and the states of its last tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx

from protocol.answers import FinishReason
from protocol.life import STATE_TOKENS

# Adjusts the logits of a row, shape (1, vocabulary), by the tokens of the row.
LogitsProcessor: TypeAlias = Callable[[mx.array, mx.array], mx.array]


class _StatesPart(NamedTuple):
    """The states of `length` tokens from a number on: the first ones of the row at `place` in
    `states`, shape (rows, tokens, width).
    """

    number: int
    length: int
    states: mx.array
    place: int


class RowStates:
    """The states of one row's last tokens. Tokens are known by their numbers."""

    def __init__(self) -> None:
        self._parts: deque[_StatesPart] = deque()

    @property
    def first(self) -> int:
        """The first token from which on all states are there. Call it once there are any."""
        return self._parts[0].number

    def record(self, number: int, count: int, states: mx.array, place: int) -> None:
        """Note the states of `count` tokens, from a number on, which a step over a batch made. Some
        of the tokens may have been computed before.
        """
        parts = self._parts
        while parts and parts[-1].number >= number:
            parts.pop()
        if parts:
            last = parts.pop()
            parts.append(last._replace(length=number - last.number))
        parts.append(_StatesPart(number, count, states, place))
        # The states of wrong guesses, which are in the same arrays, count too.
        while sum(part.states.shape[1] for part in parts) > STATE_TOKENS:
            parts.popleft()

    def between(self, begin: int, end: int) -> mx.array:
        """The states of the tokens `begin` to `end` - 1, shape (tokens, width)."""
        parts = []
        for number, length, states, place in self._parts:
            first, last = max(begin - number, 0), min(end - number, length)
            if first < last:
                parts.append(states[place, first:last])
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)


class RowCaches(NamedTuple):
    """The caches of a group of rows, and the index of one row in them."""

    caches: list[Any]
    place: int


@dataclass
class RowToken:
    """A token of a row. `guessed`: it was a right guess. `rejected`: the wrong guesses that were
    checked together with it. The last token of a row comes with the row's caches.
    """

    uid: int
    token: int
    finish_reason: FinishReason | None = None
    prompt_cache: RowCaches | None = None
    guessed: bool = False
    rejected: int = 0


@dataclass(eq=False)
class DecodingRow:
    """A row that decodes. `tokens` are the known tokens of its answer. Its caches lack the last
    `unseen` of these. The row gives out `most` tokens, and ends with a token of `ends`. The last
    token of a `spoilt` row was drawn from logits that aren't valid.
    """

    uid: int
    prompt: list[int]
    most: int
    ends: frozenset[int]
    processors: Sequence[LogitsProcessor] = ()
    tokens: list[int] = field(default_factory=list)
    given: int = 0
    unseen: int = 0
    spoilt: bool = False
    states: RowStates = field(default_factory=RowStates)

    def __post_init__(self) -> None:
        self._prompt = mx.array(self.prompt) if self.processors else None

    def process(self, logits: mx.array, more: list[int] | mx.array) -> mx.array:
        """The logits of the next token, (1, vocabulary), after `more` tokens than are known."""
        if self._prompt is None:
            return logits
        after = [mx.array(tokens, dtype=mx.int32) for tokens in (self.tokens, more)]
        tokens = mx.concatenate([self._prompt, *after])
        for processor in self.processors:
            logits = processor(tokens, logits)
        return logits

    @property
    def length(self) -> int:
        """The number of known tokens, of prompt and answer."""
        return len(self.prompt) + len(self.tokens)

    def since(self, number: int) -> list[int]:
        """The known tokens from a number on."""
        in_answer = number - len(self.prompt)
        return self.tokens[in_answer:] if in_answer >= 0 else self.prompt[number:] + self.tokens

    def give(self, token: int) -> FinishReason | None:
        """Count a token that is given out. Returns why the row ends with it; None: it goes on."""
        self.given += 1
        if token in self.ends:
            return "stop"
        return "length" if self.given >= self.most else None
