"""A drafter that guesses the next tokens of a batch's rows, and its caches.

The drafter sees only the last tokens of a row, which begin at position 0 for it. Guesses depend
mostly on these tokens, and the drafter's time and memory don't grow with the text (MagicDec: Chen
et al., 2024). So the drafter computes no prompts, and nothing while its guesses don't pay. It
starts with a row, or continues after a long pause, by one pass over few tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from protocol.life import DRAFT_TOKENS
from worker.mlx_lm.caches import make_caches
from worker.mlx_lm.decoding_row import RowStates
from worker.mlx_lm.guessing import Drafter, DrawGuesses
from worker.mlx_lm.row_caches import RowLengths, RowsCache, reserve
from worker.mlx_lm.row_groups import RowGroup

# A row begins with so many of its last tokens.
_FIRST_TOKENS: Final = 512
# A row that is so many tokens behind begins anew.
_MOST_BEHIND: Final = 64
# Rows that begin in one step have so many tokens together.
_BEGUN_TOKENS: Final = 1024


class DraftModel:
    """A small model with the same tokens, as a `Drafter`. Its sliding windows are left to the masks
    that it makes: its rows are short.
    """

    # Of right guesses it has not seen the last one.
    usual_tokens = 2
    with_states = None
    state_bytes = 0

    def __init__(self, model: Any) -> None:
        self._model = model

    @staticmethod
    def unfit(model: Any) -> list[Any]:
        """The caches of a model because of which it can't be a draft model: they can't forget."""
        kinds = KVCache, RotatingKVCache
        return [cache for cache in make_caches(model) if not isinstance(cache, kinds)]

    def make_cache(self) -> list[Any]:
        return [KVCache() for _ in make_caches(self._model)]

    def __call__(
        self, tokens: mx.array, hidden: mx.array | None, cache: list[Any]
    ) -> tuple[mx.array, mx.array | None]:
        return self._model(tokens, cache=cache), hidden


class DraftedRow(NamedTuple):
    """A row for which `guesses` tokens are to be guessed. It has `length` tokens. `since` gives its
    tokens from a number on, and `states` those that the model made for its last ones.
    """

    uid: int
    length: int
    since: Callable[[int], list[int]]
    guesses: int
    states: RowStates


class DraftResult(NamedTuple):
    """The guesses of each row, and the number of passes. A row that was left out has no guesses.
    The number is 0 if rows were started, too: then the time says nothing about a pass.
    """

    guesses: list[list[int]]
    passes: int


@dataclass
class _KnownRow:
    """The caches have seen the row's tokens up to number `seen`, without those before the first one
    that the drafter saw, and then the row's `guesses`.
    """

    uid: int
    seen: int
    guesses: list[int] = field(default_factory=list)


class Drafting:
    """The rows of a batch that a drafter knows. The batch may have others, which begin when they
    want guesses.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._needs_states = drafter.with_states is not None
        self._rows: list[_KnownRow] = []
        # The caches of these rows; None: there are no rows.
        self._group: RowGroup | None = None

    def retain(self, uids: Iterable[int]) -> None:
        """Forget all other rows."""
        wanted = set(uids)
        self._filter([place for place, known in enumerate(self._rows) if known.uid in wanted])

    def guess(self, rows: Sequence[DraftedRow], choose: DrawGuesses) -> DraftResult:
        """Guess the next tokens of the rows. The drafter knows no other rows than these."""
        given = {row.uid: row for row in rows}
        self._forget_wrong(given)
        begun = self._start_rows([drafted_row for drafted_row in rows if drafted_row.guesses])
        places = [place for place, known in enumerate(self._rows) if given[known.uid].guesses]
        if not places:
            return DraftResult([[] for _ in rows], 0)
        most = max(given[self._rows[place].uid].guesses for place in places)
        all_rows = [given[known.uid] for known in self._rows]
        # The tokens that each row has not seen, by their numbers.
        behind = [range(known.seen, known.seen) for known in self._rows]
        for place in places:
            known = self._rows[place]
            behind[place] = range(known.seen, all_rows[place].length)
            known.seen = all_rows[place].length
        usual = self._drafter.usual_tokens
        assert self._group is not None
        reserve(self._group.leaves, max(map(len, behind)) + most)
        if max(map(len, behind)) > usual:
            self._see(all_rows, [tokens[:-usual] for tokens in behind])
            begun = True
        chains = self._chain(
            all_rows,
            [tokens[-usual:] for tokens in behind],
            places,
            most,
            choose([self._rows[place].uid for place in places]),
        )
        by_uid = {}
        for place, guesses in zip(places, chains, strict=True):
            known = self._rows[place]
            # The last guess is not seen.
            known.guesses = guesses[:-1]
            by_uid[known.uid] = guesses[: given[known.uid].guesses]
        return DraftResult([by_uid.get(row.uid, []) for row in rows], 0 if begun else most)

    def _forget_wrong(self, given: dict[int, DraftedRow]) -> None:
        """Forget wrong guesses, and rows that can't go on with what is known of them."""
        if self._group is None:
            return
        gone = []
        keep = []
        for place, (known, length) in enumerate(zip(self._rows, self._group.tokens, strict=True)):
            row = given[known.uid]
            # The last token is seen with the next guesses, which follow it.
            pairs = zip(known.guesses, row.since(known.seen)[:-1], strict=False)
            right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            if self._needs_states:
                # Right guesses are seen again, with the model's states instead of the drafter's.
                right = 0
            gone.append(len(known.guesses) - right)
            known.seen += right
            known.guesses = []
            behind = row.length - known.seen
            if (
                behind <= _MOST_BEHIND
                and length - gone[-1] <= DRAFT_TOKENS - 2 * _MOST_BEHIND
                and known.seen >= self._first(row)
            ):
                keep.append(place)
        self._group.advance([-count for count in gone])
        self._filter(keep)

    def _start_rows(self, rows: Sequence[DraftedRow]) -> bool:
        """Begin with rows that aren't known, as many as one step takes. Returns whether there are
        any.
        """
        known = {known_row.uid for known_row in self._rows}
        left = _BEGUN_TOKENS
        for row in rows:
            if row.uid in known:
                continue
            # The last token comes with those of the other rows.
            first = max(row.length - 1 - _FIRST_TOKENS, self._first(row))
            tokens = row.since(first)[:-1]
            if not tokens:
                continue
            left -= len(tokens)
            if left < 0:
                break
            caches = self._drafter.make_cache()
            hidden = None
            if self._needs_states:
                hidden = row.states.between(first - 1, row.length - 2)[None]
            self._drafter(mx.array([tokens]), hidden, caches)
            self._add(_KnownRow(row.uid, row.length - 1), caches, len(tokens))
        return left < _BEGUN_TOKENS

    def _first(self, row: DraftedRow) -> int:
        """The first token of a row that the drafter can see."""
        return row.states.first + 1 if self._needs_states else 0

    def _add(self, row: _KnownRow, caches: list[Any], tokens: int) -> None:
        """Add a row with its own caches, which have seen so many tokens."""
        lengths = RowLengths([tokens])
        new = RowGroup([RowsCache(lengths, cache.keys, cache.values) for cache in caches], 1)
        if self._group is None:
            self._group = new
        else:
            self._group.add_rows(new, [0])
        self._rows.append(row)

    def _filter(self, keep: list[int]) -> None:
        if self._group is None or len(keep) == len(self._rows):
            return
        if not keep:
            self._rows, self._group = [], None
            return
        self._rows = [self._rows[place] for place in self._group.retain(keep)]
        self._group.move_rows()

    def _chain(
        self,
        all_rows: list[DraftedRow],
        behind: list[range],
        places: list[int],
        most: int,
        draw: Callable[[mx.array], mx.array],
    ) -> list[list[int]]:
        """Let the rows see their last tokens, and guess `most` tokens after these for the rows at
        the `places`, each from the guesses before.
        """
        rows = mx.array(places)
        logits, hidden = self._see(all_rows, behind)
        logits = logits[rows, mx.array([len(behind[place]) - 1 for place in places])]
        if hidden is not None:
            lasts = mx.array([max(0, len(tokens) - 1) for tokens in behind])
            hidden = hidden[mx.arange(len(behind)), lasts][:, None]
        drawn = [draw(logits)]
        grown = [int(bool(tokens)) for tokens in behind]
        for _ in range(most - 1):
            mx.async_eval(drawn[-1])  # type: ignore[no-untyped-call]  # MLX's own stubs
            tokens = mx.zeros(len(behind), dtype=drawn[-1].dtype)
            tokens[rows] = drawn[-1]
            logits, hidden = self._pass(tokens[:, None], hidden, grown)
            drawn.append(draw(logits[rows, -1]))
        guesses: list[list[int]] = mx.stack(drawn, axis=1).tolist()  # type: ignore[assignment]
        return guesses

    def _see(
        self, all_rows: list[DraftedRow], token_ranges: list[range]
    ) -> tuple[mx.array, mx.array | None]:
        """Let each row see some of its tokens. Returns their logits, (rows, tokens, vocabulary),
        and the drafter's states.
        """
        lengths = [len(token_range) for token_range in token_ranges]
        padded = [
            row.since(token_range.start)[: len(token_range)]
            + [0] * (max(lengths) - len(token_range))
            for row, token_range in zip(all_rows, token_ranges, strict=True)
        ]
        hidden = None
        if self._needs_states:
            states = [
                row.states.between(token_range.start - 1, token_range.stop - 1)
                if token_range
                else None
                for row, token_range in zip(all_rows, token_ranges, strict=True)
            ]
            hidden = _padded(states, max(lengths))
        return self._pass(mx.array(padded), hidden, lengths)

    def _pass(
        self, tokens: mx.array, hidden: mx.array | None, grown: list[int]
    ) -> tuple[mx.array, mx.array | None]:
        """A pass over tokens, (rows, tokens), of which `grown` of each row are its own."""
        assert self._group is not None
        logits, hidden = self._drafter(tokens, hidden, self._group.caches)
        self._group.advance(grown)
        return logits, hidden


def _padded(states: list[mx.array | None], tokens: int) -> mx.array:
    """States of rows, each (tokens, width) or None for no tokens, as one array."""
    some = next(state for state in states if state is not None)
    empty = mx.zeros((tokens, some.shape[1]), some.dtype)
    return mx.stack(
        [
            empty
            if array is None
            else array
            if len(array) == tokens
            else mx.concatenate([array, empty[len(array) :]])
            for array in states
        ]
    )
