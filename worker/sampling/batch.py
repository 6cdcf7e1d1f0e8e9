"""A sampler for all rows of a batch, which makes one pass over their log probabilities."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import mlx.core as mx

from worker.mlx_lm.guessing import RowGuesses
from worker.sampling.adjustments import Adjuster, Adjustments, RowSubset, TokenHistory
from worker.sampling.distribution import Filters, Xtc, draw, masses
from worker.sampling.scores import Score, Scores
from worker.sampling.settings import RowSampling, uniforms

Key = TypeVar("Key")
# Log probabilities (rows, vocabulary) to the same with minus infinity for forbidden tokens.
Mask: TypeAlias = Callable[[mx.array], mx.array]


class Beginning(NamedTuple):
    """The adjustments and the tokens of a row that has not been in a call yet."""

    adjustments: Adjustments
    token_ids: Sequence[int]


class BatchSampler(Generic[Key]):
    """Chooses the next token of every row by the row's own settings and random numbers.

    mlx-lm calls one sampler for each row, unless all rows of a batch have the same sampler object.
    Then it calls that object once, with all rows, and doesn't say which rows they are.
    """

    def __init__(
        self, rows: Callable[[], Sequence[Key]], logits: Callable[[], mx.array] | None = None
    ) -> None:
        """`rows` returns the keys of the rows of the present call, in their order. `logits` returns
        the model's logits of these rows, (rows, tokens, vocabulary); only the last token's are
        used. Without `logits`, log probabilities are used in their place.
        """
        self._rows = rows
        self._logits = logits
        # For rows that want scores: the number of alternatives, and the scores not taken yet.
        self._alternatives: dict[Key, int] = {}
        self._scores: dict[Key, deque[tuple[Scores, int]]] = {}
        self._samplings: dict[Key, RowSampling | None] = {}
        self._adjustments: dict[Key, Beginning] = {}
        self._histories: dict[Key, TokenHistory] = {}
        self._positions: dict[Key, int] = {}
        self._pass: _Pass[Key] | None = None
        # The width of log probabilities.
        self._vocabulary = 0
        # Of the last check: the history and the score at each position.
        self._checked: tuple[list[TokenHistory | None], dict[int, tuple[Scores, int]]] = ([], {})

    def add(
        self,
        key: Key,
        sampling: RowSampling | None,
        adjustments: Adjustments | None = None,
        token_ids: Sequence[int] = (),
        logprobs: int | None = None,
    ) -> None:
        """Add a row. `sampling` None is greedy. `token_ids` are the row's tokens so far, of prompt
        and answer. With `logprobs` each token gets a score with so many alternatives.
        """
        self._samplings[key] = sampling
        if adjustments is not None:
            self._adjustments[key] = Beginning(adjustments, token_ids)
        if logprobs is not None:
            self._alternatives[key] = logprobs
            self._scores[key] = deque()
        if sampling is not None:
            self._positions[key] = sampling.position

    def remove(self, key: Key) -> None:
        del self._samplings[key]
        self._positions.pop(key, None)
        self._adjustments.pop(key, None)
        self._histories.pop(key, None)
        self._alternatives.pop(key, None)
        self._scores.pop(key, None)

    def next_score(self, key: Key) -> Score | None:
        """The row's earliest score that was not taken yet; None if the row wants no scores."""
        scores = self._scores.get(key)
        if scores is None:
            return None
        of_call, row = scores.popleft()
        return of_call.read()[row]

    def __call__(self, logprobs: mx.array, mask: Mask | None = None) -> mx.array:
        """Log probabilities (rows, vocabulary) to token ids (rows,). The `mask` is applied after
        the adjustments.
        """
        keys = list(self._rows())
        if len(keys) != logprobs.shape[0]:
            raise RuntimeError(f"{logprobs.shape[0]} rows are to be sampled, not {len(keys)}.")
        self._vocabulary = logprobs.shape[1]
        if self._pass is None or self._pass.keys != keys:
            self._end_pass()
            self._pass = self._start_pass(keys, [self._history(key) for key in keys])
        positions = [self._positions[key] for key in self._pass.sampled]
        for key in self._pass.sampled:
            self._positions[key] += 1
        logits = logprobs if self._logits is None else self._logits()[:, -1, :]
        token_ids = self._pass.choose(logprobs, logits, positions, mask)
        self._pass.record(token_ids)
        for place, score in self._score(keys, logits, token_ids):
            self._scores[keys[place]].append(score)
        return token_ids

    def check(
        self,
        logprobs: mx.array,
        logits: mx.array,
        rows: Sequence[RowGuesses[Key]],
        mask: Mask | None = None,
    ) -> mx.array:
        """Choose a token for the next position of each row, and for the position after each of its
        guesses, as if all guesses before were right. `logprobs`, `logits`: (positions, vocabulary).
        Returns token ids, (positions,). The rows go on once `accept` gets these.
        """
        self._end_pass()
        self._vocabulary = logprobs.shape[1]
        keys = [row.row for row in rows for _ in range(len(row.guesses) + 1)]
        histories: list[TokenHistory | None] = []
        positions: list[int] = []
        for key, guesses in rows:
            history = self._history(key)
            histories.append(history)
            for token_id in guesses:
                history = None if history is None else history.after(token_id)
                histories.append(history)
            if key in self._positions:
                first = self._positions[key]
                positions += range(first, first + len(guesses) + 1)
        chosen = self._start_pass(keys, histories)
        token_ids = chosen.choose(logprobs, logits, positions, mask)
        self._checked = histories, dict(self._score(keys, logits, token_ids))
        return token_ids

    def accept(
        self, rows: Sequence[RowGuesses[Key]], right: Sequence[int], drawn: list[int]
    ) -> None:
        """Go on behind the right guesses of each row, and the token drawn after these. `drawn` are
        the token ids of `check`.
        """
        (histories, scores), self._checked = self._checked, ([], {})
        begin = 0
        for (key, guesses), count in zip(rows, right, strict=True):
            last = begin + count
            if key in self._positions:
                self._positions[key] += count + 1
            history = histories[last]
            if history is not None:
                self._histories[key] = history.after(drawn[last])
            if key in self._scores:
                self._scores[key] += [scores[place] for place in range(begin, last + 1)]
            begin += len(guesses) + 1

    def draw_guesses(self, keys: Sequence[Key]) -> Callable[[mx.array], mx.array]:
        """A function that draws guesses for the next tokens of rows, call by call, as the rows
        themselves will draw these: logits (rows, vocabulary) to token ids (rows,). Fewer logits
        than the model's are of its first tokens. The rows, which have drawn tokens before, don't go
        on.
        """
        self._end_pass()
        histories = [copy(self._histories.get(key)) for key in keys]
        guessing = self._start_pass(list(keys), histories)
        positions = [self._positions[key] for key in guessing.sampled]

        def draw(logits: mx.array) -> mx.array:
            missing = self._vocabulary - logits.shape[1]
            if missing:
                logits = mx.pad(logits, [(0, 0), (0, missing)], constant_values=-mx.inf)
            token_ids = guessing.choose(_normalized(logits), logits, positions, None)
            guessing.record(token_ids)
            positions[:] = [position + 1 for position in positions]
            return token_ids

        return draw

    def _start_pass(self, keys: list[Key], histories: Sequence[TokenHistory | None]) -> _Pass[Key]:
        samplings = [self._samplings[key] for key in keys]
        return _Pass(keys, samplings, histories, self._vocabulary)

    def _end_pass(self) -> None:
        """Write the histories of the rows back, since the rows go on otherwise."""
        if self._pass is not None:
            self._pass.end()
        self._pass = None

    def _history(self, key: Key) -> TokenHistory | None:
        beginning = self._adjustments.pop(key, None)
        if beginning is not None:
            token_ids = mx.array(list(beginning.token_ids))
            self._histories[key] = beginning.adjustments.make_history(token_ids, self._vocabulary)
        return self._histories.get(key)

    def _score(
        self, keys: Sequence[Key], logits: mx.array, token_ids: mx.array
    ) -> list[tuple[int, tuple[Scores, int]]]:
        """The places among `keys` that want scores, each with its scores and its row in them."""
        scored = [place for place, key in enumerate(keys) if key in self._alternatives]
        if not scored:
            return []
        if len(scored) < len(keys):
            rows = mx.array(scored, dtype=mx.uint32)
            logits, token_ids = logits[rows], token_ids[rows]
        alternatives = [self._alternatives[keys[place]] for place in scored]
        scores = Scores(logits, token_ids, alternatives)
        return [(place, (scores, row)) for row, place in enumerate(scored)]


class _Pass(Generic[Key]):
    """Chooses tokens for the same rows, step after step: their settings are arrays here."""

    def __init__(
        self,
        keys: list[Key],
        samplings: Sequence[RowSampling | None],
        histories: Sequence[TokenHistory | None],
        vocabulary: int,
    ) -> None:
        self.keys = keys
        self._adjusted = RowSubset(history is not None for history in histories)
        there = [token_history for token_history in histories if token_history is not None]
        self._adjuster = Adjuster(there) if there else None
        rows = [
            (index, sampling) for index, sampling in enumerate(samplings) if sampling is not None
        ]
        self.sampled = [keys[index] for index, _ in rows]
        self._mixed = len(rows) < len(keys)
        self._indices = mx.array([index for index, _ in rows], dtype=mx.uint32)
        self._streams = [row_sampling.stream() for _, row_sampling in rows]
        self._inverse_temperatures = mx.array([1.0 / sampling.temperature for _, sampling in rows])[
            :, None
        ]
        self._on_cpu = _on_cpu()
        self._filters = Filters([sampling for _, sampling in rows], vocabulary, on_cpu=self._on_cpu)
        self._xtc = Xtc([sampling for _, sampling in rows], vocabulary)

    def choose(
        self, logprobs: mx.array, logits: mx.array, positions: Sequence[int], mask: Mask | None
    ) -> mx.array:
        """Token ids (rows,). `positions` are those of the rows that aren't greedy."""
        if self._adjuster is not None:
            logprobs = self._adjust(self._adjuster, logprobs, logits)
        return self._choose(logprobs if mask is None else mask(logprobs), positions)

    def record(self, token_ids: mx.array) -> None:
        """Add the chosen tokens, (rows,), to the histories of the rows."""
        if self._adjuster is not None:
            self._adjuster.record(self._adjusted.of(token_ids))

    def end(self) -> None:
        """Write the histories back, before the rows go on in another pass."""
        if self._adjuster is not None:
            self._adjuster.write_back()

    def _adjust(self, adjuster: Adjuster, logprobs: mx.array, logits: mx.array) -> mx.array:
        rows = adjuster.adjust(self._adjusted.of(logprobs), self._adjusted.of(logits))
        # Rows without adjustments get single precision too, which changes none of their tokens.
        return self._adjusted.put(_exact(logprobs), _normalized(rows))

    def _choose(self, logprobs: mx.array, positions: Sequence[int]) -> mx.array:
        if not self.sampled:
            return mx.argmax(logprobs, axis=-1)
        if not self._mixed:
            return self._sample(logprobs, positions)
        tokens = mx.argmax(logprobs, axis=-1)
        tokens[self._indices] = self._sample(logprobs[self._indices], positions)
        return tokens

    def _sample(self, logprobs: mx.array, positions: Sequence[int]) -> mx.array:
        logprobs = _exact(logprobs)
        largest = logprobs.max(axis=-1, keepdims=True)
        least_allowed = self._filters.least_allowed(logprobs, largest)
        excluded = self._xtc.apply(logprobs, least_allowed, self._streams, positions)
        if excluded is not None:
            logprobs, largest = excluded, excluded.max(axis=-1, keepdims=True)
        token_masses = masses(
            logprobs, largest, self._inverse_temperatures, least_allowed, on_cpu=self._on_cpu
        )
        numbers = [uniforms(*pair) for pair in zip(self._streams, positions, strict=True)]
        return draw(token_masses, mx.array(numbers))


def _exact(logprobs: mx.array) -> mx.array:
    """Log probabilities in single precision, of total probability 1. In bfloat16 the total is up to
    4 % from 1.
    """
    if logprobs.dtype == mx.float32:
        return logprobs
    return _normalized(logprobs.astype(mx.float32))


def _normalized(values: mx.array) -> mx.array:
    return values - mx.logsumexp(values, axis=-1, keepdims=True)


def _on_cpu() -> bool:
    return mx.default_device().type == mx.DeviceType.cpu
