"""The adjustments of several rows in one pass, and what these rows have said so far.

Histories stay on the device: when the next token is to be chosen the last one is still computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import mlx.core as mx

from worker.sampling.adjustments import FORBIDDEN, Adjustments, History
from worker.sampling.rows import RowSubset


class Adjuster:
    """Of the same rows, step after step."""

    def __init__(self, histories: Sequence[History]) -> None:
        self._histories = histories
        biases = [each.bias for each in histories]
        self._biased = RowSubset(each is not None for each in biases)
        self._bias = _stack(biases)
        self._repetition = _Repetition(histories)
        self._counts = _Counts(histories)
        self._phrases = _Phrases(histories)

    def adjust(self, logprobs: mx.array, logits: mx.array) -> mx.array:
        """Log probabilities (rows, vocabulary) with everything added, in single precision; what
        they were a part of, as a probability, they no longer are. `logits` are the model's own.
        """
        adjusted = logprobs.astype(mx.float32)
        if self._bias is not None:
            adjusted = self._biased.put(adjusted, self._biased.of(adjusted) + self._bias)
        adjusted = self._repetition.adjust(adjusted, logits)
        adjusted = self._counts.adjust(adjusted)
        adjusted = self._phrases.adjust(adjusted)
        return self._without_ends(adjusted)

    def take_in(self, token_ids: mx.array) -> None:
        """What was chosen: (rows,)."""
        for each in self._histories:
            each.position += 1
        token_ids = token_ids.astype(mx.int32)
        self._repetition.take_in(token_ids)
        self._counts.take_in(token_ids)
        self._phrases.take_in(token_ids)

    def put_back(self) -> None:
        """Bring the histories up to date: their rows go on in other company."""
        self._repetition.put_back()
        self._counts.put_back()
        self._phrases.put_back()

    def _without_ends(self, adjusted: mx.array) -> mx.array:
        rows: list[int] = []
        ends: list[int] = []
        for row, each in enumerate(self._histories):
            if each.position < each.adjustments.min_tokens:
                rows += [row] * len(each.adjustments.ends)
                ends += each.adjustments.ends
        if not rows:
            return adjusted
        return adjusted.at[mx.array(rows), mx.array(ends)].minimum(FORBIDDEN)


class _Repetition:
    """One penalty for whatever is in a window, however often."""

    def __init__(self, histories: Sequence[History]) -> None:
        self._rows = RowSubset(each.window is not None for each in histories)
        self._histories = [histories[row] for row in self._rows.places]
        if not self._histories:
            return
        windows = [each.window for each in self._histories if each.window is not None]
        self._lengths = [each.shape[0] for each in windows]
        longest = max(self._lengths)
        self._windows = mx.stack([mx.pad(each, (longest - each.shape[0], 0)) for each in windows])
        beyond = [longest - each for each in self._lengths]
        self._within = mx.arange(longest)[None] >= mx.array(beyond)[:, None]
        self._penalties = mx.array(
            [each.adjustments.repetition_penalty for each in self._histories]
        )[:, None]

    def adjust(self, adjusted: mx.array, logits: mx.array) -> mx.array:
        if not self._histories:
            return adjusted
        # In place of what a shorter window doesn't have the last token stands once more.
        token_ids = mx.where(self._within, self._windows, self._windows[:, -1:])
        own = self._rows.of(logits)
        before = mx.take_along_axis(own, token_ids, axis=-1).astype(mx.float32)
        after = mx.where(before < 0, before * self._penalties, before / self._penalties)
        rows = self._rows.of(adjusted)
        changed = mx.take_along_axis(rows, token_ids, axis=-1) + (after - before)
        return self._rows.put(adjusted, mx.put_along_axis(rows, token_ids, changed, axis=-1))

    def take_in(self, token_ids: mx.array) -> None:
        if self._histories:
            self._windows = _shifted(self._windows, self._rows.of(token_ids))

    def put_back(self) -> None:
        for row, history in enumerate(self._histories):
            history.window = self._windows[row, -self._lengths[row] :]


class _Counts:
    """Penalties for what an answer has said already, of the whole vocabulary at once."""

    def __init__(self, histories: Sequence[History]) -> None:
        self._rows = RowSubset(each.counts is not None for each in histories)
        self._histories = [histories[row] for row in self._rows.places]
        counts = _stack([each.counts for each in self._histories])
        if counts is None:
            return
        self._counts = counts
        self._places = mx.arange(len(self._histories))
        adjustments: list[Adjustments] = [each.adjustments for each in self._histories]
        self._frequency = mx.array([each.frequency_penalty for each in adjustments])[:, None]
        self._presence = mx.array([each.presence_penalty for each in adjustments])[:, None]

    def adjust(self, adjusted: mx.array) -> mx.array:
        if not self._histories:
            return adjusted
        penalized = _penalized(
            self._rows.of(adjusted), self._counts, self._frequency, self._presence
        )
        return self._rows.put(adjusted, penalized)

    def take_in(self, token_ids: mx.array) -> None:
        if self._histories:
            self._counts = self._counts.at[self._places, self._rows.of(token_ids)].add(1.0)

    def put_back(self) -> None:
        for row, history in enumerate(self._histories):
            history.counts = self._counts[row]


@partial(mx.compile, shapeless=True)
def _penalized(
    values: mx.array, counts: mx.array, frequency: mx.array, presence: mx.array
) -> mx.array:
    return values - (frequency * counts + mx.where(counts > 0, presence, 0.0))


class _Phrases:
    """Sequences of tokens that are not to be completed."""

    def __init__(self, histories: Sequence[History]) -> None:
        self._rows = RowSubset(each.end is not None for each in histories)
        self._histories = [histories[row] for row in self._rows.places]
        if not self._histories:
            return
        ends = [each.end for each in self._histories if each.end is not None]
        self._lengths = [each.shape[0] for each in ends]
        longest = max(self._lengths)
        self._ends = mx.stack([mx.pad(each, (longest - each.shape[0], 0)) for each in ends])
        phrases = [
            (row, phrase)
            for row, each in enumerate(self._histories)
            for phrase in each.adjustments.phrases
        ]
        self._of = mx.array([row for row, _ in phrases])
        self._in = mx.array([self._rows.places[row] for row, _ in phrases])
        self._last = mx.array([phrase[-1] for _, phrase in phrases])
        beginnings = [(0,) * (longest + 1 - len(each)) + each[:-1] for _, each in phrases]
        self._beginnings = mx.array(beginnings)
        lengths = mx.array([len(phrase) - 1 for _, phrase in phrases])[:, None]
        self._beyond = mx.arange(longest)[None] < longest - lengths

    def adjust(self, adjusted: mx.array) -> mx.array:
        if not self._histories:
            return adjusted
        same = (self._ends[self._of] == self._beginnings) | self._beyond
        forbidden = mx.where(same.all(axis=-1), FORBIDDEN, math.inf)
        return adjusted.at[self._in, self._last].minimum(forbidden)

    def take_in(self, token_ids: mx.array) -> None:
        if self._histories:
            self._ends = _shifted(self._ends, self._rows.of(token_ids))

    def put_back(self) -> None:
        for row, history in enumerate(self._histories):
            history.end = self._ends[row, -self._lengths[row] :]


def _shifted(ids: mx.array, last: mx.array) -> mx.array:
    return mx.concatenate([ids[:, 1:], last[:, None]], axis=1)


def _stack(arrays: Sequence[mx.array | None]) -> mx.array | None:
    """Those that there are, one below the other."""
    there = [each for each in arrays if each is not None]
    return mx.stack(there) if there else None
