"""The rows of a batch that decode. Every row may carry guesses into a step.

mlx-lm's GenerationBatch gives each row one token a step. Here one forward pass takes the next token
of a row and guesses for the tokens after it. A token is drawn for every position, by the row's own
settings and random numbers. A guess is right if it is the token that was drawn for its position, so
the text is the same as without guesses. What follows a wrong guess is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from protocol.answers import FinishReason
from worker.mlx_lm.caches import leaves_of
from worker.mlx_lm.drafting import DraftedRow, Drafting
from worker.mlx_lm.guessing import DRAFTED, Checker, Drafter, Guesser, ObserveStep, RowGuesses
from worker.mlx_lm.row_caches import RowLengths, RowsCache, reserve
from worker.mlx_lm.states import RowStates

# Adjusts the logits of a row, shape (1, vocabulary), by the tokens of the row.
LogitsProcessor: TypeAlias = Callable[[mx.array, mx.array], mx.array]


class RowCaches(NamedTuple):
    """The caches of a batch, and the index of one row in them."""

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
    `unseen` of these. The row gives out `most` tokens, and ends with a token of `ends`.
    """

    uid: int
    prompt: list[int]
    most: int
    ends: frozenset[int]
    processors: Sequence[LogitsProcessor] = ()
    tokens: list[int] = field(default_factory=list)
    given: int = 0
    unseen: int = 0
    states: RowStates = field(default_factory=RowStates)

    def __post_init__(self) -> None:
        self._prompt = mx.array(self.prompt) if self.processors else None

    def process(self, logits: mx.array, more: list[int] | mx.array) -> mx.array:
        """The logits of the next token, (1, vocabulary), after `more` tokens than are known."""
        if self._prompt is None:
            return logits
        after = [mx.array(each, dtype=mx.int32) for each in (self.tokens, more)]
        tokens = mx.concatenate([self._prompt, *after])
        for each in self.processors:
            logits = each(tokens, logits)
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


@dataclass(eq=False)
class _State:
    """The recurrent state of each layer before a step."""

    caches: list[ArraysCache]
    arrays: list[list[mx.array]] = field(init=False)

    def __post_init__(self) -> None:
        self.arrays = [list(each.cache) for each in self.caches]

    def put_back(self, rows: list[bool]) -> None:
        """Give the chosen rows their state from before the step."""
        chosen = mx.array(rows)
        for cache, arrays in zip(self.caches, self.arrays, strict=True):
            cache.cache = [
                mx.where(chosen.reshape(-1, *[1] * (now.ndim - 1)), before, now)
                for before, now in zip(arrays, cache.cache, strict=True)
            ]


_UNBOUNDED: Final = 1 << 30
# A pause that is longer than this, in seconds, is not a part of the next step.
_PAUSE_S: Final = 0.02


class DecodingRows:
    """Rows that decode, in the place of mlx-lm's GenerationBatch. `prompt_cache` are their caches,
    and `uids` the numbers of the rows.

    The next step is given to the device before the tokens of this step are read, unless guesses are
    likely to be worth more than that.
    """

    def __init__(
        self,
        model: Any,
        checker: Callable[[mx.array], mx.array] | Checker,
        guesser: Guesser | None = None,
        observe: ObserveStep | None = None,
        drafter: Drafter | None = None,
        *,
        lends: bool,
    ) -> None:
        """With `lends` the last token of a row comes with the caches of the whole batch, which are
        to be used before the next step. Otherwise it comes with a copy of the row's part.
        """
        self.model = model
        self.prompt_cache: list[Any] = []
        self._rows: list[DecodingRow] = []
        # The next tokens of all rows, (rows,), if nobody has read them.
        self._drawn: mx.array | None = None
        self._draw = checker
        self._guesser = guesser
        self._observe = observe
        self._lends = lends
        self._drafting = None if drafter is None else Drafting(drafter)
        # The seconds of the drafter in this step.
        self._drafted_s = 0.0
        self._ended_at = 0.0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def uids(self) -> list[int]:
        return [each.uid for each in self._rows]

    def begin(self, rows: list[DecodingRow], caches: list[Any]) -> None:
        """Take rows into an empty batch, and draw their first tokens. The caches lack the last
        token of each row.
        """
        self._rows, self.prompt_cache = rows, caches
        self._draw_next(mx.array([each.prompt[-1] for each in rows]), begins=True)
        self._advance([1] * len(rows))

    def extend(self, other: DecodingRows) -> None:
        """Take in the rows of another batch."""
        if not self._rows:
            self._rows, self.prompt_cache = other._rows, other.prompt_cache
            self._drawn = other._drawn
            return
        drawn = [self._read_later(), other._read_later()]
        for own, new in zip(self.prompt_cache, other.prompt_cache, strict=True):
            own.extend(new)
        for lengths, more in zip(self._lengths, other._lengths, strict=True):
            lengths.set(lengths.tokens + more.tokens, lengths.dropped + more.dropped)
        self._rows += other._rows
        self._drawn = mx.concatenate(drawn)

    def filter(self, keep: list[int]) -> None:
        """Keep these rows alone, by their places."""
        drawn = self._drawn
        self._rows = [self._rows[place] for place in keep]
        if self._drafting is not None:
            self._drafting.keep(self.uids)
        if not keep:
            self.prompt_cache, self._drawn = [], None
            return
        for each in self.prompt_cache:
            each.filter(keep)
        for lengths in self._lengths:
            lengths.set(
                [lengths.tokens[place] for place in keep],
                [lengths.dropped[place] for place in keep],
            )
        self._drawn = None if drawn is None else drawn[mx.array(keep)]

    def extract_cache(self, place: int) -> list[Any]:
        return [each.extract(place) for each in self.prompt_cache]

    def next(self) -> list[RowToken]:
        """Compute a step. Returns the tokens of all rows, those of a row in their order."""
        if not self._rows:
            return []
        began_at, last = perf_counter(), self._ended_at
        self._drafted_s = 0.0
        guesses = self._guesses()
        rows = len(self._rows)
        width = 1
        if guesses is not None:
            # Rows whose state went back have several known tokens.
            fed = zip(self._rows, guesses, strict=True)
            width = max(row.unseen + len(own) for row, own in fed)
        tokens = self._plain() if guesses is None else self._wide(guesses)
        self._ended_at = perf_counter()
        if self._observe is not None and began_at - last < _PAUSE_S:
            self._observe(rows, width, self._ended_at - last - self._drafted_s)
        return tokens

    @property
    def _can_forget(self) -> bool:
        """Whether the caches can forget wrong guesses."""
        kinds = (RowsCache, ArraysCache)
        return all(isinstance(each, kinds) or each.empty() for each in leaves_of(self.prompt_cache))

    @property
    def _free_slots(self) -> int:
        """The tokens a row for which the caches needn't grow."""
        free = [each.keys.shape[2] - each.lengths.most_slots for each in self._own]
        return min(free, default=_UNBOUNDED)

    @property
    def _own(self) -> list[RowsCache]:
        return [each for each in leaves_of(self.prompt_cache) if isinstance(each, RowsCache)]

    @property
    def _lengths(self) -> list[RowLengths]:
        """The lengths that caches share: one for each window."""
        return list({id(each.lengths): each.lengths for each in self._own}.values())

    def _read_later(self) -> mx.array:
        """The next tokens of all rows, (rows,), without a wait."""
        if self._drawn is not None:
            return self._drawn
        drawn = mx.array([each.tokens.pop() for each in self._rows], dtype=mx.uint32)
        for each in self._rows:
            each.unseen -= 1
        return drawn

    def _read(self) -> None:
        """Wait for the tokens that the last step drew."""
        if self._drawn is None:
            return
        tokens: list[int] = self._drawn.tolist()  # type: ignore[assignment]
        for row, token in zip(self._rows, tokens, strict=True):
            row.tokens.append(token)
            row.unseen += 1
        self._drawn = None

    def _guesses(self) -> list[list[int]] | None:
        """The guesses of each row for the next step; None: every row takes its next token alone."""
        guesser = self._guesser
        if guesser is None or not self._can_forget:
            return None
        known = 0 if self._drawn is not None else 1
        # Rows whose state went back have tokens to compute again.
        late = any(each.unseen > known for each in self._rows)
        if not late and self._drawn is not None and not guesser.is_likely(self.uids):
            return None
        self._read()
        first = [each.tokens[-1] for each in self._rows]
        free = self._free_slots
        most = [
            0
            if each.unseen > 1 or each.tokens[-1] in each.ends
            else max(0, min(each.most - each.given, free) - 1)
            for each in self._rows
        ]
        guesses = guesser.guess(self.uids, first, most, self._draft)
        if not late and not any(guesses):
            return None
        checker: Any = self._draw
        return [
            checker.possible(each.uid, own) if own else []
            for each, own in zip(self._rows, guesses, strict=True)
        ]

    def _draft(self, counts: list[int]) -> list[list[int]]:
        """Have the drafter guess so many tokens for each row, whose tokens are all known."""
        if self._drafting is None:
            return [[] for _ in counts]
        checker: Any = self._draw
        began_at = perf_counter()
        rows = [
            DraftedRow(each.uid, each.length, each.since, count, each.states)
            for each, count in zip(self._rows, counts, strict=True)
        ]
        guesses, passes = self._drafting.guess(rows, checker.draw_guesses)
        self._drafted_s = perf_counter() - began_at
        if self._observe is not None and passes:
            self._observe(len(counts), DRAFTED, self._drafted_s / passes)
        return guesses

    def _plain(self) -> list[RowToken]:
        inputs = self._read_later()
        self._draw_next(inputs)
        self._advance([1] * len(self._rows))
        tokens: list[int] = inputs.tolist()  # type: ignore[assignment]
        for row, token in zip(self._rows, tokens, strict=True):
            row.tokens.append(token)
        return self._give([[token] for token in tokens], [0] * len(tokens))

    def _draw_next(self, inputs: mx.array, *, begins: bool = False) -> None:
        """Begin to compute the tokens after `inputs`, (rows,). With `begins` these are the last
        tokens of the prompts.
        """
        logits, states = self._forward(inputs[:, None])
        logits = logits[:, -1, :]
        self._note(states, [each.length - begins for each in self._rows], [1] * len(self._rows))
        if any(each.processors for each in self._rows):
            parts = [
                row.process(logits[at : at + 1], [] if begins else inputs[at : at + 1])
                for at, row in enumerate(self._rows)
            ]
            logits = mx.concatenate(parts)
        with self.model.sampling(self.uids):
            self._drawn = self._draw(_logprobs(logits))
        mx.async_eval(self._drawn)  # type: ignore[no-untyped-call]  # MLX's own stubs

    def _wide(self, guesses: list[list[int]]) -> list[RowToken]:
        rows = self._rows
        fed = [
            [*row.tokens[len(row.tokens) - row.unseen :], *own]
            for row, own in zip(rows, guesses, strict=True)
        ]
        lengths = [len(each) for each in fed]
        width = max(lengths)
        state = self._recurrent(lengths)
        logits, states = self._forward(mx.array([each + [0] * (width - len(each)) for each in fed]))
        if state is not None and min(lengths) < width:
            for cache in state.caches:
                cache.finalize()
        flat = logits.reshape(-1, logits.shape[-1])
        places = [
            at * width + place
            for at, (length, own) in enumerate(zip(lengths, guesses, strict=True))
            for place in range(length - len(own) - 1, length)
        ]
        chosen = flat if len(places) == flat.shape[0] else flat[mx.array(places)]
        firsts = [row.length - row.unseen for row in rows]
        right, following = self._check(chosen, guesses)
        self._note(
            states,
            firsts,
            [
                length - len(own) + count
                for length, own, count in zip(lengths, guesses, right, strict=True)
            ],
        )
        self._keep_right(state, lengths, guesses, right)
        given = [
            [row.tokens[-1 - count], *row.tokens[len(row.tokens) - count :]]
            for row, count in zip(rows, right, strict=True)
        ]
        rejected = [len(own) - count for own, count in zip(guesses, right, strict=True)]
        for row, token in zip(rows, following, strict=True):
            row.tokens.append(token)
            row.unseen += 1
        return self._give(given, rejected)

    def _check(self, logits: mx.array, guesses: list[list[int]]) -> tuple[list[int], list[int]]:
        """How many guesses of each row are right, and the token that follows these. Adds the right
        guesses to the row.
        """
        checker: Any = self._draw
        carried = [RowGuesses(row.uid, own) for row, own in zip(self._rows, guesses, strict=True)]
        adjusted = logits
        if any(each.processors for each in self._rows):
            parts = [
                (row, own[:count])
                for row, own in zip(self._rows, guesses, strict=True)
                for count in range(len(own) + 1)
            ]
            adjusted = mx.concatenate(
                [row.process(logits[at : at + 1], own) for at, (row, own) in enumerate(parts)]
            )
        drawn: list[int] = checker.check(_logprobs(adjusted), logits, carried).tolist()
        right: list[int] = checker.settle(drawn)
        following = []
        at = 0
        for row, own, count in zip(self._rows, guesses, right, strict=True):
            row.tokens += own[:count]
            following.append(drawn[at + count])
            at += len(own) + 1
        return right, following

    def _keep_right(
        self, state: _State | None, lengths: list[int], guesses: list[list[int]], right: list[int]
    ) -> None:
        """Let the caches forget what follows a wrong guess. A recurrent state can't forget single
        tokens: it goes back to before the step, and its row's tokens are computed again in the next
        step.
        """
        wrong = [len(own) - count for own, count in zip(guesses, right, strict=True)]
        if state is None or not any(wrong):
            self._advance([length - gone for length, gone in zip(lengths, wrong, strict=True)])
            for row in self._rows:
                row.unseen = 0
            return
        state.put_back([gone > 0 for gone in wrong])
        self._advance([0 if gone else length for length, gone in zip(lengths, wrong, strict=True)])
        for row, gone, count in zip(self._rows, wrong, right, strict=True):
            row.unseen = row.unseen + count if gone else 0

    def _give(self, given: list[list[int]], rejected: list[int]) -> list[RowToken]:
        """The tokens that rows give out. Rows that end leave the batch."""
        found: list[RowToken] = []
        keep: list[int] = []
        lent: list[Any] | None = None
        for place, (row, tokens) in enumerate(zip(self._rows, given, strict=True)):
            for at, token in enumerate(tokens):
                reason = row.give(token)
                made = RowToken(row.uid, token, reason, None, at > 0, 0 if at else rejected[place])
                found.append(made)
                if self._guesser is not None:
                    self._guesser.take(row.uid, token)
                if reason is None:
                    continue
                if self._lends:
                    lent = _lent(self.prompt_cache) if lent is None else lent
                    made.prompt_cache = RowCaches(lent, place)
                else:
                    made.prompt_cache = RowCaches(self.extract_cache(place), 0)
                break
            else:
                keep.append(place)
        if len(keep) < len(self._rows):
            self.filter(keep)
        return found

    def _forward(self, tokens: mx.array) -> tuple[mx.array, mx.array | None]:
        """Logits, (rows, tokens, vocabulary), of token ids, (rows, tokens), and the tokens' states,
        (rows, tokens, width), if these are wanted.
        """
        for lengths in self._lengths:
            reserve([each for each in self._own if each.lengths is lengths], tokens.shape[1])
        computed: tuple[mx.array, mx.array | None] = self.model.decode(tokens, self.prompt_cache)
        return computed

    def _note(self, states: mx.array | None, firsts: list[int], counts: list[int]) -> None:
        """Note the states of a step, if there are any: of `counts` tokens of each row, from the
        numbers `firsts` on.
        """
        if states is None:
            return
        for place, (row, first, count) in enumerate(zip(self._rows, firsts, counts, strict=True)):
            row.states.note(first, count, states, place)

    def _advance(self, tokens: list[int]) -> None:
        """Note how many tokens more of each row the caches have seen."""
        for lengths in self._lengths:
            lengths.set([own + more for own, more in zip(lengths.tokens, tokens, strict=True)])

    def _recurrent(self, lengths: list[int]) -> _State | None:
        """The recurrent states before a step in which each row has so many tokens; None: there are
        none.
        """
        caches = [each for each in leaves_of(self.prompt_cache) if isinstance(each, ArraysCache)]
        if not caches:
            return None
        if min(lengths) < max(lengths):
            for each in caches:
                each.prepare(lengths=lengths)
        return _State(caches)


def _logprobs(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _lent(caches: list[Any]) -> list[Any]:
    """The caches for reading, while the batch goes on with other arrays. mlx-lm would copy the
    ended row's part, array by array.
    """
    return [
        each.lent() if isinstance(each, RowsCache) else copy(each) for each in leaves_of(caches)
    ]
