"""The states that a model computed for the last tokens of a row, until a head has seen them."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import mlx.core as mx

from protocol.life import STATE_TOKENS


class _Part(NamedTuple):
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
        self._parts: deque[_Part] = deque()

    @property
    def first(self) -> int:
        """The first token from which on all states are there. Call it once there are any."""
        return self._parts[0].number

    def note(self, number: int, count: int, states: mx.array, place: int) -> None:
        """Note the states of `count` tokens, from a number on, which a step over a batch made. Some
        of the tokens may have been computed before.
        """
        parts = self._parts
        while parts and parts[-1].number >= number:
            parts.pop()
        if parts:
            last = parts.pop()
            parts.append(last._replace(length=number - last.number))
        parts.append(_Part(number, count, states, place))
        # The states of wrong guesses, which are in the same arrays, count too.
        while sum(each.states.shape[1] for each in parts) > STATE_TOKENS:
            parts.popleft()

    def between(self, begin: int, end: int) -> mx.array:
        """The states of the tokens `begin` to `end` - 1, shape (tokens, width)."""
        found = []
        for number, length, states, place in self._parts:
            first, last = max(begin - number, 0), min(end - number, length)
            if first < last:
                found.append(states[place, first:last])
        return found[0] if len(found) == 1 else mx.concatenate(found)
