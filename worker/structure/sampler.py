"""A batch's sampler that masks the rows whose answers must match a constraint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cache, partial
from typing import Final, Generic, TypeVar

import mlx.core as mx
import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import (
    allocate_token_bitmask,
    fill_next_token_bitmask,
    fill_next_token_bitmask_par,
)
from numpy.typing import NDArray

from worker.mlx_lm.guessing import RowGuesses
from worker.sampling.adjustments import Adjustments
from worker.sampling.batch import BatchSampler, Mask
from worker.sampling.distribution import masses
from worker.sampling.scores import Score
from worker.sampling.settings import RowSampling
from worker.structure.grammar import one_line

# No tag that ends reasoning has more tokens.
_TAG_TOKENS: Final = 24
Key = TypeVar("Key")
# The least log probability of tokens that a constraint allows: finite in float16, and far below
# that of any token that is chosen otherwise. If other settings forbid all tokens that a constraint
# allows, one of the allowed tokens is still chosen.
_LEAST: Final = -6e4
# A mask takes a fraction of a millisecond. If all masks of a step take longer than this, the next
# step makes its masks one by one. If one row's mask then takes more processor time than this, the
# row ends, since other rows wait for it.
_SLOW_S: Final = 0.1
_MOST_THREADS: Final = 8


class ConstrainedSampler(Generic[Key]):
    """Samples all rows in one pass. Rows with a constraint get a mask first, in one pass too.

    mlx-lm asks for a token while the token before it is still being computed. If a row has a
    constraint, the sampler waits for the token before: the model's next step has begun by then, and
    goes on while the masks are made. Without a row with a constraint the sampler never waits.
    """

    def __init__(
        self, rows: Callable[[], Sequence[Key]], logits: Callable[[], mx.array] | None = None
    ) -> None:
        """`rows` and `logits` are as for `BatchSampler`."""
        self._rows = rows
        self._sampler = BatchSampler[Key](rows, logits)
        self._matchings: dict[Key, Matching] = {}
        # Rows with a constraint and top_p, for which probabilities are summed.
        self._summed: set[Key] = set()
        # The tokens of the last call, and the row's place among them.
        self._chosen: dict[Key, tuple[mx.array, int]] = {}
        self._broken: dict[Key, str] = {}
        self._one_by_one = False
        # The tokens that must follow those that a row's matching has taken in.
        self._forced: dict[Key, list[int]] = {}
        # The rows of the last check, and the matchings before and after each of their guesses.
        self._checked: Sequence[RowGuesses[Key]] = ()
        self._ahead: dict[Key, list[Matching]] = {}

    def add(
        self,
        key: Key,
        sampling: RowSampling | None,
        adjustments: Adjustments | None = None,
        token_ids: Sequence[int] = (),
        logprobs: int | None = None,
        constrained: SequenceConstraint | None = None,
    ) -> None:
        self._sampler.add(key, sampling, adjustments, token_ids, logprobs)
        if constrained is not None:
            self._matchings[key] = constrained.make_matching()
            if sampling is not None and sampling.top_p < 1.0:
                self._summed.add(key)

    def remove(self, key: Key) -> None:
        self._sampler.remove(key)
        self._matchings.pop(key, None)
        self._summed.discard(key)
        self._chosen.pop(key, None)
        self._broken.pop(key, None)
        self._forced.pop(key, None)

    def next_score(self, key: Key) -> Score | None:
        return self._sampler.next_score(key)

    def remove_broken(self) -> dict[Key, str]:
        """Rows that can't go on, and why. All tokens of such a row match, except the token chosen
        last, which mlx-lm has not given out.
        """
        broken, self._broken = self._broken, {}
        return broken

    def __call__(self, logprobs: mx.array) -> mx.array:
        """Log probabilities (rows, vocabulary) to token ids (rows,)."""
        if not self._matchings:
            return self._sampler(logprobs)
        places = {key: place for place, key in enumerate(self._rows()) if key in self._matchings}
        if not places:
            return self._sampler(logprobs)
        # The model's step begins before the sampler waits for tokens.
        mx.async_eval(logprobs)  # type: ignore[no-untyped-call] # MLX leaves its types out
        self._feed(places)
        keys = [key for key in places if key in self._matchings]
        if not keys:
            return self._sampler(logprobs)
        matchings = [self._matchings[key] for key in keys]
        masks = self._fill(keys, matchings)
        self._forced |= {
            key: matching.forced for key, matching in zip(keys, matchings, strict=True)
        }
        tokens = self._sampler(logprobs, self._mask(keys, [places[key] for key in keys], masks))
        for key in keys:
            self._chosen[key] = (tokens, places[key])
        return tokens

    def forced(self, key: Key) -> list[int]:
        """The tokens that must come next in a row, as far as they are known: the first of them may
        have been drawn already.
        """
        return self._forced.get(key, [])

    def possible(self, key: Key, guesses: list[int]) -> list[int]:
        """The guesses of a row up to the first that its constraint forbids. All tokens of the row
        that were drawn must be known.
        """
        if key not in self._matchings:
            return guesses
        self._feed([key])
        if key not in self._matchings:
            return []
        ahead = [self._matchings[key]]
        for token_id in guesses:
            if not ahead[-1].allows(token_id):
                break
            ahead.append(ahead[-1].after(token_id))
        self._ahead[key] = ahead
        return guesses[: len(ahead) - 1]

    def check(
        self, logprobs: mx.array, logits: mx.array, rows: Sequence[RowGuesses[Key]]
    ) -> mx.array:
        """Choose tokens like `BatchSampler.check`, from guesses that are `possible`."""
        self._checked = rows
        keys: list[Key] = []
        places: list[int] = []
        matchings: list[Matching] = []
        begin = 0
        for key, guesses in rows:
            if key in self._matchings and key not in self._ahead:
                self._feed([key])
                self._ahead[key] = [self._matchings[key]] if key in self._matchings else []
            count = len(guesses) + 1
            row_matchings = self._ahead.get(key, [])
            matchings += row_matchings
            keys += [key] * len(row_matchings)
            places += range(begin, begin + len(row_matchings))
            begin += count
        if not keys:
            return self._sampler.check(logprobs, logits, rows)
        mx.async_eval(logprobs)  # type: ignore[no-untyped-call]
        mask = self._mask(keys, places, self._fill(keys, matchings))
        return self._sampler.check(logprobs, logits, rows, mask)

    def accept(self, drawn: list[int]) -> list[int]:
        """Take the tokens that `check` chose. Returns for each row how many guesses are right."""
        tokens = mx.array(drawn)
        right = []
        begin = 0
        for key, guesses in self._checked:
            count = 0
            while count < len(guesses) and drawn[begin + count] == guesses[count]:
                count += 1
            right.append(count)
            ahead = self._ahead.pop(key, [])
            if ahead and key in self._matchings:
                self._matchings[key] = ahead[count]
                self._forced[key] = ahead[count].forced
                self._chosen[key] = (tokens, begin + count)
            begin += len(guesses) + 1
        self._sampler.accept(self._checked, right, drawn)
        self._checked = ()
        return right

    def draw_guesses(self, keys: Sequence[Key]) -> Callable[[mx.array], mx.array]:
        """A function that draws guesses like that of `BatchSampler`, without masks: these would
        have to wait for each guess. `possible` cuts the guesses.
        """
        return self._sampler.draw_guesses(keys)

    def _feed(self, keys: Sequence[Key] | dict[Key, int]) -> None:
        """Wait for the tokens of the last call, and feed them to the matchings."""
        read: dict[int, list[int]] = {}
        for key in keys:
            if key not in self._chosen:
                continue
            tokens, place = self._chosen.pop(key)
            if id(tokens) not in read:
                # The tokens of most rows are of the same call.
                read[id(tokens)] = tokens.tolist()  # type: ignore[assignment]
            began_s = time.thread_time()
            self._matchings[key].feed(read[id(tokens)][place])
            self._check(key, time.thread_time() - began_s)

    def _mask(self, keys: Sequence[Key], places: list[int], masks: NDArray[np.int32]) -> Mask:
        """A function that applies the masks of `keys` to the `places` of log probabilities. Masks
        come after the penalties, which don't know which tokens must come.
        """
        summed = [index for index, key in enumerate(keys) if key in self._summed]
        return lambda adjusted: masked(adjusted, places, masks, summed)

    def _fill(self, keys: Sequence[Key], matchings: Sequence[Matching]) -> NDArray[np.int32]:
        """Bit masks of the tokens that each row may have next, shape (keys, words)."""
        masks = allocate_token_bitmask(len(matchings), matchings[0].width)
        bound = [
            (index, matching)
            for index, matching in enumerate(matchings)
            if matching.stage != Stage.THINKING
        ]
        began_s = time.perf_counter()
        if self._one_by_one or len(bound) == 1:
            for index, matching in bound:
                row_began_s = time.thread_time()
                fill_next_token_bitmask(matching.matcher, masks, index)
                self._check(keys[index], time.thread_time() - row_began_s)
        elif bound:
            rows = [(matching.matcher, index) for index, matching in bound]
            fill_next_token_bitmask_par(_executor(), rows, masks)
            for index, _ in bound:
                self._check(keys[index], 0.0)
        self._one_by_one = time.perf_counter() - began_s > _SLOW_S
        for index, matching in enumerate(matchings):
            matching.amend(masks[index])
        return masks

    def _check(self, key: Key, took_s: float) -> None:
        reason = self._matchings[key].error if key in self._matchings else ""
        if took_s > _SLOW_S:
            reason = f"a token of it took {took_s:.2f} s"
        if reason:
            # A row with guesses has several masks, and each may be slow.
            self._matchings.pop(key, None)
            self._broken[key] = one_line(reason)


def masked(
    logprobs: mx.array, rows: list[int], masks: NDArray[np.int32], summed: list[int]
) -> mx.array:
    """A copy of `logprobs` in which `rows` have only the tokens that their masks allow. `summed`
    are places in `rows`: the rows there have a total probability of 1 again.
    """
    together = len(rows) == logprobs.shape[0]
    indices = mx.array(rows, dtype=mx.uint32)
    chosen = (logprobs if together else logprobs[indices]).astype(mx.float32)
    masked_rows = _left(chosen, _spread(masks, logprobs.shape[1]))
    if summed:
        these = mx.array(summed, dtype=mx.uint32)
        masked_rows[these] = _normalized(masked_rows[these])
    masked_rows = masked_rows.astype(logprobs.dtype)
    if together:
        return masked_rows
    # A copy, since mlx-lm gives `logprobs` out.
    result = logprobs[:]
    result[indices] = masked_rows
    return result


@dataclass(frozen=True)
class Thinking:
    """A model's reasoning, which need not match. `open`: the prompt ends in reasoning. Otherwise
    the answer may begin with reasoning, whose first token is `begin`. `over` tells by the last
    tokens whether the reasoning has ended. Tokens of `eos` can't come in reasoning.
    """

    begin: int | None
    over: Callable[[list[int]], bool]
    eos: tuple[int, ...]
    open: bool


@dataclass(frozen=True)
class SequenceConstraint:
    """A sequence's constraint. `before` are the tokens that the answer had when an engine took the
    sequence.
    """

    compiled: LLMatcher
    tokenizer: LLTokenizer
    before: tuple[int, ...] = ()
    thinking: Thinking | None = None
    # Keywords of the client's schemas that aren't enforced.
    unenforced: tuple[str, ...] = ()

    def after(self, generated: list[int]) -> SequenceConstraint:
        return replace(self, before=(*self.before, *generated))

    def make_matching(self) -> Matching:
        """A new matching that has taken in the tokens `before`. The copy of the matcher takes
        microseconds, and so does each token.
        """
        matching = Matching(self.compiled.deep_copy(), self.tokenizer, self.thinking)
        for token_id in self.before:
            matching.feed(token_id)
        return matching


class Stage(Enum):
    """Where an answer stands: it may begin with reasoning, it is in reasoning, or it must match."""

    FIRST = auto()
    THINKING = auto()
    BOUND = auto()


class Matching:
    """Follows one answer, token by token, through its reasoning and its constraint's grammar."""

    def __init__(
        self, matcher: LLMatcher, tokenizer: LLTokenizer, thinking: Thinking | None = None
    ) -> None:
        self.matcher = matcher
        self._tokenizer = tokenizer
        self._thinking = thinking
        self._last: list[int] = []
        # The tokens that must come next, by the last mask.
        self.forced: list[int] = []
        self.stage = Stage.BOUND
        if thinking is not None:
            self.stage = Stage.THINKING if thinking.open else Stage.FIRST

    @property
    def width(self) -> int:
        """The number of tokens in a mask."""
        return self._tokenizer.vocab_size

    @property
    def error(self) -> str:
        """Why the answer can't go on; empty: it can."""
        return self.matcher.get_error() if self.matcher.is_error() else ""

    def allows(self, token_id: int) -> bool:
        """Whether this token may come next."""
        if self.stage is Stage.BOUND:
            return bool(self.matcher.validate_tokens([token_id]))
        # Where reasoning may begin, only its beginning and the grammar's tokens may come.
        if self.stage is Stage.FIRST and self._thinking is not None:
            begins = token_id == self._thinking.begin
            return begins or bool(self.matcher.validate_tokens([token_id]))
        return self._thinking is None or token_id not in self._thinking.eos

    def after(self, token_id: int) -> Matching:
        """A matching that has taken in this token, too."""
        copied = Matching(self.matcher.deep_copy(), self._tokenizer, self._thinking)
        copied.stage, copied._last = self.stage, self._last
        copied.feed(token_id)
        return copied

    def feed(self, token_id: int) -> None:
        """Take in the token that was chosen."""
        self.forced = []
        thinking = self._thinking
        if thinking is not None and self.stage is Stage.FIRST:
            # The tag of a call may begin with the same token. Then the call has precedence.
            thinks = token_id == thinking.begin and not self.matcher.validate_tokens([token_id])
            self.stage = Stage.THINKING if thinks else Stage.BOUND
        if thinking is None or self.stage is Stage.BOUND:
            self.matcher.consume_token(token_id)
            return
        self._last = [*self._last, token_id][-_TAG_TOKENS:]
        if thinking.over(self._last):
            self.stage = Stage.BOUND

    def amend(self, mask: NDArray[np.int32]) -> None:
        """Allow `begin` where reasoning may begin, and forbid tokens of `eos` in reasoning. `mask`
        has a bit for each token: the matcher's bits, or in reasoning all bits set.
        """
        thinking = self._thinking
        bits = mask.view(np.uint32)
        if self.stage is not Stage.THINKING:
            self._spell(bits)
            self.forced = self._forced_tokens(bits)
        if thinking is None or self.stage is Stage.BOUND:
            return
        if self.stage is Stage.FIRST:
            if thinking.begin is not None:
                bits[thinking.begin // 32] |= np.uint32(1 << thinking.begin % 32)
            return
        for token_id in thinking.eos:
            bits[token_id // 32] &= ~np.uint32(1 << token_id % 32)

    def _forced_tokens(self, bits: NDArray[np.uint32]) -> list[int]:
        several = np.count_nonzero(bits) != 1 or int(bits.max()).bit_count() != 1
        if several or self.stage is Stage.FIRST:
            return []
        return list(self.matcher.compute_ff_tokens())

    def _spell(self, bits: NDArray[np.uint32]) -> None:
        """Replace the only allowed token, if the matcher itself refuses it. llguidance tokenizes a
        text that must come next like any text: the tokenizer may turn the text into a special
        token, or normalize it. Then the text is written in other tokens.
        """
        if np.count_nonzero(bits) != 1:
            return
        word = int(bits.argmax())
        forced = word * 32 + int(bits[word]).bit_length() - 1
        text = self.matcher.compute_ff_bytes().decode(errors="ignore")
        if bits[word].bit_count() != 1 or not text or self.matcher.validate_tokens([forced]):
            return
        for token_id in self._tokenizer.greedy_tokenize(text)[:1]:
            bits[word] = 0
            bits[token_id // 32] = np.uint32(1 << token_id % 32)


@partial(mx.compile, shapeless=True)
def _left(logprobs: mx.array, allowed: mx.array) -> mx.array:
    return mx.where(allowed, mx.maximum(logprobs, _LEAST), -mx.inf)


def _normalized(logprobs: mx.array) -> mx.array:
    largest = logprobs.max(axis=-1, keepdims=True)
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    total = masses(logprobs, largest, mx.ones_like(largest), None, on_cpu=on_cpu).sum(
        axis=-1, keepdims=True
    )
    return logprobs - largest - mx.log(total)


def _spread(masks: NDArray[np.int32], vocabulary: int) -> mx.array:
    """Masks as booleans, (rows, vocabulary). Logits beyond the end of a mask belong to no token."""
    words = mx.array(masks.view(np.uint32))[:, :, None]
    bits = (words >> mx.arange(32, dtype=mx.uint32)) & 1
    allowed = bits.reshape(masks.shape[0], -1).astype(mx.bool_)
    beyond = vocabulary - allowed.shape[1]
    return mx.pad(allowed, [(0, 0), (0, beyond)]) if beyond > 0 else allowed[:, :vocabulary]


@cache
def _executor() -> LLExecutor:
    """The threads that fill the masks of this process."""
    return LLExecutor(max(1, min(_MOST_THREADS, (os.cpu_count() or 2) // 2)))
