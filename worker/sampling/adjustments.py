"""Changes of log probabilities that requests ask for: biases, penalties, banned words, a least
length of the answer.

The histories of the rows stay on the device: while a token is chosen, the token before it is still
being computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import mlx.core as mx

from protocol.requests import Sampling

# The log probability of tokens that a request forbids. It is finite, where tokens that a constraint
# forbids have minus infinity. If both together forbid all tokens, the constraint has precedence.
FORBIDDEN: Final = -3e4
# An id that stands for tokens before the answer, and that no banned sequence has.
_NO_TOKEN: Final = -1


@dataclass(frozen=True)
class Adjustments:
    """The adjustments of one sequence. Biases and penalties are added, so their order doesn't
    matter.

    The first `prompt_tokens` of the sequence are no part of the answer. `banned` are sequences of
    tokens: the last token of one isn't chosen after its other tokens. Tokens of `ends` aren't
    chosen among the first `min_tokens` of the answer.
    """

    prompt_tokens: int
    repetition_penalty: float = 1.0
    # How many of the last tokens, of prompt and answer, are penalized.
    repetition_tokens: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed: tuple[int, ...] = ()
    banned: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    ends: tuple[int, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether a penalty depends on how often a token has come."""
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    @property
    def repeats(self) -> bool:
        return self.repetition_penalty != 1.0

    @property
    def phrases(self) -> tuple[tuple[int, ...], ...]:
        """The banned sequences of more than one token."""
        return tuple(words for words in self.banned if len(words) > 1)

    def make_history(self, token_ids: mx.array, vocabulary: int) -> TokenHistory:
        """The history of a sequence. `token_ids`: (tokens,), of prompt and answer."""
        answer = token_ids[self.prompt_tokens :]
        history = TokenHistory(self, answer.shape[0], self._bias(vocabulary))
        if self.counts:
            history.counts = mx.zeros(vocabulary)
            if answer.shape[0]:
                history.counts = history.counts.at[answer].add(1.0)
        if self.repeats:
            last = token_ids[-self.repetition_tokens :].astype(mx.int32)
            # Copies of its first token fill a window. They change nothing, and leave the window
            # before the first token does.
            missing = mx.repeat(last[:1], self.repetition_tokens - last.shape[0])
            history.window = mx.concatenate([missing, last])
        if self.phrases:
            length = max(map(len, self.phrases)) - 1
            end = answer[-length:].astype(mx.int32)
            history.end = mx.concatenate([mx.full(length - end.shape[0], _NO_TOKEN), end])
        return history

    def _bias(self, vocabulary: int) -> mx.array | None:
        """The adjustments that are the same for each token of the answer, (vocabulary,)."""
        words = [words[0] for words in self.banned if len(words) == 1]
        if not (self.logit_bias or self.allowed or words):
            return None
        bias = mx.zeros(vocabulary)
        if self.allowed:
            bias = mx.full(vocabulary, FORBIDDEN)
            bias[mx.array(self.allowed)] = 0.0
        if words:
            bias[mx.array(words)] = FORBIDDEN
        if self.logit_bias:
            token_ids, values = zip(*self.logit_bias, strict=True)
            bias = bias.at[mx.array(token_ids)].add(mx.array(values, dtype=mx.float32))
        return bias


@dataclass
class TokenHistory:
    """The tokens of one sequence, in the forms that its adjustments need. `position`: how many
    tokens the answer has.

    `counts`: (vocabulary,), how often the answer has each token. `window`: (tokens,), the ids whose
    repetition is penalized, the latest id at the end. `end`: (tokens,), the answer's last ids.
    """

    adjustments: Adjustments
    position: int
    bias: mx.array | None = None
    counts: mx.array | None = None
    window: mx.array | None = None
    end: mx.array | None = None

    def after(self, token_id: int) -> TokenHistory:
        """The history with one token more."""

        def moved(ids: mx.array | None) -> mx.array | None:
            return None if ids is None else mx.concatenate([ids[1:], mx.array([token_id])])

        counts = None if self.counts is None else self.counts.at[token_id].add(1.0)
        return replace(
            self,
            position=self.position + 1,
            counts=counts,
            window=moved(self.window),
            end=moved(self.end),
        )


def make_adjustments(
    sampling: Sampling,
    prompt_tokens: int,
    most_tokens: int,
    ends: Sequence[int],
    banned: Sequence[Sequence[int]] = (),
) -> Adjustments | None:
    """The adjustments of one request; None if it asks for none. Prompt and answer together have
    `most_tokens` at most; `ends` are the tokens that end an answer.
    """
    penalty = 1.0 if sampling.repetition_penalty is None else sampling.repetition_penalty
    adjustments = Adjustments(
        prompt_tokens,
        repetition_penalty=penalty,
        repetition_tokens=min(sampling.repetition_context_tokens, most_tokens),
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        logit_bias=sampling.logit_bias,
        allowed=sampling.allowed_token_ids,
        banned=tuple(tuple(words) for words in banned),
        min_tokens=sampling.min_tokens if ends else 0,
        ends=tuple(ends),
    )
    changes = (
        adjustments.repeats
        or adjustments.counts
        or adjustments.logit_bias
        or adjustments.allowed
        or adjustments.banned
    )
    return adjustments if changes or adjustments.min_tokens else None


def banned_sequences(words: Iterable[str], tokenizer: Any) -> list[tuple[int, ...]]:
    """Two sequences of tokens for each word: at the beginning of a text, and after a space. vLLM
    bans the second sequence only if both have equally many tokens: it allows " the" if " the" is
    one token and "the" isn't. The same word in other tokens isn't banned, nor is a longer word that
    has other tokens.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        for spelled in (word.lstrip(" "), f" {word.lstrip(' ')}"):
            token_ids = tuple(tokenizer.encode(spelled, add_special_tokens=False))
            if token_ids and spelled.strip(" "):
                sequences[token_ids] = None
    return list(sequences)


class Adjuster:
    """Adjusts the log probabilities of the same rows, one for each history, step after step."""

    def __init__(self, histories: Sequence[TokenHistory]) -> None:
        self._histories = histories
        self._biased = RowSubset(history.bias is not None for history in histories)
        biases = [
            token_history.bias for token_history in histories if token_history.bias is not None
        ]
        self._bias = mx.stack(biases) if biases else None
        self._parts: list[_Repetition | _Counts | _Phrases] = []
        if any(history.window is not None for history in histories):
            self._parts.append(_Repetition(histories))
        if any(history.counts is not None for history in histories):
            self._parts.append(_Counts(histories))
        if any(history.end is not None for history in histories):
            self._parts.append(_Phrases(histories))

    def adjust(self, logprobs: mx.array, logits: mx.array) -> mx.array:
        """Log probabilities (rows, vocabulary) with all adjustments, in single precision; a row's
        total probability is no longer 1. `logits` are the model's own.
        """
        adjusted = logprobs.astype(mx.float32)
        if self._bias is not None:
            adjusted = self._biased.put(adjusted, self._biased.of(adjusted) + self._bias)
        for part in self._parts:
            adjusted = part.adjust(adjusted, logits)
        return self._without_ends(adjusted)

    def record(self, token_ids: mx.array) -> None:
        """Add the tokens that were chosen, (rows,), to the histories."""
        for history in self._histories:
            history.position += 1
        token_ids = token_ids.astype(mx.int32)
        for part in self._parts:
            part.record(token_ids)

    def write_back(self) -> None:
        """Write the arrays of this batch into the histories, before rows go on in another batch."""
        for part in self._parts:
            part.write_back()

    def _without_ends(self, adjusted: mx.array) -> mx.array:
        rows: list[int] = []
        ends: list[int] = []
        for row, history in enumerate(self._histories):
            if history.position < history.adjustments.min_tokens:
                rows += [row] * len(history.adjustments.ends)
                ends += history.adjustments.ends
        if not rows:
            return adjusted
        return adjusted.at[mx.array(rows), mx.array(ends)].minimum(FORBIDDEN)


class _Repetition:
    """The repetition penalty, once for each token in a row's window, however often it is there."""

    def __init__(self, histories: Sequence[TokenHistory]) -> None:
        self._rows = RowSubset(history.window is not None for history in histories)
        self._histories = [histories[row] for row in self._rows.places]
        self._windows = _Windows([token_history.window for token_history in self._histories])
        self._penalties = mx.array(
            [history.adjustments.repetition_penalty for history in self._histories]
        )[:, None]

    def adjust(self, adjusted: mx.array, logits: mx.array) -> mx.array:
        # A shorter window is filled with copies of its last token.
        ids = self._windows.ids
        token_ids = mx.where(self._windows.within, ids, ids[:, -1:])
        row_logits = self._rows.of(logits)
        before = mx.take_along_axis(row_logits, token_ids, axis=-1).astype(mx.float32)
        after = mx.where(before < 0, before * self._penalties, before / self._penalties)
        rows = self._rows.of(adjusted)
        changed = mx.take_along_axis(rows, token_ids, axis=-1) + (after - before)
        return self._rows.put(adjusted, mx.put_along_axis(rows, token_ids, changed, axis=-1))

    def record(self, token_ids: mx.array) -> None:
        self._windows.shift(self._rows.of(token_ids))

    def write_back(self) -> None:
        for row, history in enumerate(self._histories):
            history.window = self._windows.of(row)


class _Counts:
    """The frequency and presence penalties for tokens that an answer already has."""

    def __init__(self, histories: Sequence[TokenHistory]) -> None:
        self._rows = RowSubset(history.counts is not None for history in histories)
        self._histories = [histories[row] for row in self._rows.places]
        self._counts = mx.stack(
            [
                token_history.counts
                for token_history in self._histories
                if token_history.counts is not None
            ]
        )
        self._places = mx.arange(len(self._histories))
        adjustments: list[Adjustments] = [history.adjustments for history in self._histories]
        self._frequency = mx.array([adjustment.frequency_penalty for adjustment in adjustments])[
            :, None
        ]
        self._presence = mx.array([adjustment.presence_penalty for adjustment in adjustments])[
            :, None
        ]

    def adjust(self, adjusted: mx.array, _logits: mx.array) -> mx.array:
        penalized = _penalized(
            self._rows.of(adjusted), self._counts, self._frequency, self._presence
        )
        return self._rows.put(adjusted, penalized)

    def record(self, token_ids: mx.array) -> None:
        self._counts = self._counts.at[self._places, self._rows.of(token_ids)].add(1.0)

    def write_back(self) -> None:
        for row, history in enumerate(self._histories):
            history.counts = self._counts[row]


@partial(mx.compile, shapeless=True)
def _penalized(
    values: mx.array, counts: mx.array, frequency: mx.array, presence: mx.array
) -> mx.array:
    return values - (frequency * counts + mx.where(counts > 0, presence, 0.0))


class _Phrases:
    """Banned sequences of several tokens: the last token of one is forbidden after its others."""

    def __init__(self, histories: Sequence[TokenHistory]) -> None:
        self._rows = RowSubset(history.end is not None for history in histories)
        self._histories = [histories[row] for row in self._rows.places]
        self._ends = _Windows([token_history.end for token_history in self._histories])
        longest = self._ends.ids.shape[1]
        phrases = [
            (row, phrase)
            for row, history in enumerate(self._histories)
            for phrase in history.adjustments.phrases
        ]
        self._of = mx.array([row for row, _ in phrases])
        self._in = mx.array([self._rows.places[row] for row, _ in phrases])
        self._last = mx.array([phrase[-1] for _, phrase in phrases])
        beginnings = [(0,) * (longest + 1 - len(pair)) + pair[:-1] for _, pair in phrases]
        self._beginnings = mx.array(beginnings)
        lengths = mx.array([len(phrase) - 1 for _, phrase in phrases])[:, None]
        self._beyond = mx.arange(longest)[None] < longest - lengths

    def adjust(self, adjusted: mx.array, _logits: mx.array) -> mx.array:
        same = (self._ends.ids[self._of] == self._beginnings) | self._beyond
        forbidden = mx.where(same.all(axis=-1), FORBIDDEN, math.inf)
        return adjusted.at[self._in, self._last].minimum(forbidden)

    def record(self, token_ids: mx.array) -> None:
        self._ends.shift(self._rows.of(token_ids))

    def write_back(self) -> None:
        for row, history in enumerate(self._histories):
            history.end = self._ends.of(row)


class _Windows:
    """Windows of the last tokens of some rows. Their lengths differ; all end in the last column.

    `ids`: (rows, longest). `within`: (rows, longest), false where a window is shorter than that.
    """

    def __init__(self, windows: Sequence[mx.array | None]) -> None:
        there = [window for window in windows if window is not None]
        self._lengths = [array.shape[0] for array in there]
        longest = max(self._lengths)
        self.ids = mx.stack([mx.pad(array, (longest - array.shape[0], 0)) for array in there])
        beyond = mx.array([longest - length for length in self._lengths])
        self.within = mx.arange(longest)[None] >= beyond[:, None]

    def of(self, row: int) -> mx.array:
        return self.ids[row, -self._lengths[row] :]

    def shift(self, last: mx.array) -> None:
        """Append each row's `last` token, (rows,), and drop its first."""
        self.ids = mx.concatenate([self.ids[:, 1:], last[:, None]], axis=1)


class RowSubset:
    """Some rows of a batch. If the subset has all rows of the batch, nothing is copied."""

    def __init__(self, chosen: Iterable[bool]) -> None:
        """`chosen` has a flag for each row of the batch."""
        flags = list(chosen)
        self.places = [row for row, flag in enumerate(flags) if flag]
        self._all = len(self.places) == len(flags)
        self._indices = mx.array(self.places, dtype=mx.uint32)

    def of(self, values: mx.array) -> mx.array:
        return values if self._all else values[self._indices]

    def put(self, values: mx.array, rows: mx.array) -> mx.array:
        """`values` of the whole batch, with `rows` in place of the subset's."""
        if self._all:
            return rows
        changed = mx.array(values)
        changed[self._indices] = rows
        return changed
