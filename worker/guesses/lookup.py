"""Guesses the next tokens of a text from the text itself. It finds the last place with the same
tokens as the end of the text, and guesses the tokens that followed there.

The idea is prompt lookup decoding (Saxena, 2023). An answer often repeats parts of its prompt, as
an edited file does, or parts of the answer that the client expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# So many tokens that came before, in the same order, are worth a guess.
_LEAST: Final = 3
# So many tokens of a prompt are looked through with each token of the answer.
_READ: Final = 2048
# A longer match is not counted.
_MOST: Final = 64


class Lookup:
    """Guesses the next tokens of one growing text."""

    def __init__(self, token_ids: Sequence[int], prediction: Sequence[int] = ()) -> None:
        """`prediction` is a text that the answer may repeat from its beginning on."""
        self._tokens = [*prediction, *token_ids]
        # The place behind the last occurrence of each stretch of tokens, but the end of the text.
        self._places: dict[tuple[int, ...], int] = {}
        # The places before this one have not been looked through yet.
        self._unread = len(self._tokens)
        self._read()
        # How many tokens before `_at` are also the last ones of the text.
        self._at, self.matched = (0, _LEAST) if prediction else self._find()

    @property
    def next(self) -> int | None:
        """The guess for the next token; None: there is no guess."""
        return None if self._at is None else self._tokens[self._at]

    def add(self, token_id: int) -> None:
        """Add a token to the text."""
        self._read()
        tokens = self._tokens
        if len(tokens) >= _LEAST:
            self._places[tuple(tokens[-_LEAST:])] = len(tokens)
        follows = self._at is not None and tokens[self._at] == token_id
        tokens.append(token_id)
        if follows and self._at is not None:
            self._at += 1
            self.matched = min(self.matched + 1, _MOST)
            return
        self._at, self.matched = self._find()

    def after(self, token_id: int, most: int) -> tuple[list[int], int]:
        """Guesses for at most `most` tokens after the next token, which is `token_id`, and the
        number of tokens that match before these.
        """
        if self._at is not None and self._tokens[self._at] == token_id:
            place, matched = self._at + 1, min(self.matched + 1, _MOST)
        else:
            place = self._places.get((*self._tokens[1 - _LEAST :], token_id), 0)
            matched = _LEAST if place else 0
        if not matched:
            return [], 0
        guesses = self._tokens[place : place + most]
        if len(guesses) < most:
            # The match reaches the end of the text, which repeats what lies between.
            period = [*guesses, token_id]
            guesses = (period * (most // len(period) + 1))[:most]
        return guesses, matched

    def _read(self) -> None:
        """Look through some more of the text, from its end to its beginning. A long text would
        hold up the rows of the batch.
        """
        tokens, last = self._tokens, self._unread
        self._unread = max(_LEAST, last - _READ)
        for place in range(last - 1, self._unread - 1, -1):
            self._places.setdefault(tuple(tokens[place - _LEAST : place]), place)

    def _find(self) -> tuple[int | None, int]:
        """The place behind the last occurrence of the text's end, and the tokens that match."""
        tokens, length = self._tokens, _LEAST
        place = self._places.get(tuple(tokens[-_LEAST:]))
        if place is None:
            return None, 0
        while length < min(_MOST, place) and tokens[place - 1 - length] == tokens[-1 - length]:
            length += 1
        return place, length
