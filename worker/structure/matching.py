"""Where one answer stands in what it must match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

# No tag has more.
_TAG_TOKENS: Final = 24


@dataclass(frozen=True)
class Thinking:
    """A model's reasoning, which no constraint is for. `open`: the prompt ends in it; else the
    model may `begin` it with its first token. `over` tells by the last tokens whether it has ended;
    tokens of `eos` don't end it.
    """

    begin: int | None
    over: Callable[[list[int]], bool]
    eos: tuple[int, ...]
    open: bool


@dataclass(frozen=True)
class Constrained:
    """A sequence's constraint, and the tokens of its answer before its turn in an engine."""

    compiled: LLMatcher
    tokenizer: LLTokenizer
    before: tuple[int, ...] = ()
    thinking: Thinking | None = None
    # Of the schemas that its client wants to be heeded.
    unenforced: tuple[str, ...] = ()

    def after(self, generated: list[int]) -> Constrained:
        return replace(self, before=(*self.before, *generated))

    def begin(self) -> Matching:
        """Where a turn begins. A copy takes microseconds, and so does a token."""
        matching = Matching(self.compiled.deep_copy(), self.tokenizer, self.thinking)
        for token_id in self.before:
            matching.feed(token_id)
        return matching


class Stage(Enum):
    """Of an answer: it may yet begin with reasoning, it is in there, or it has to match."""

    FIRST = auto()
    THINKING = auto()
    BOUND = auto()


class Matching:
    """Follows an answer, token by token."""

    def __init__(
        self, matcher: LLMatcher, tokenizer: LLTokenizer, thinking: Thinking | None = None
    ) -> None:
        self.matcher = matcher
        self._tokenizer = tokenizer
        self._thinking = thinking
        self._last: list[int] = []
        self.stage = Stage.BOUND
        if thinking is not None:
            self.stage = Stage.THINKING if thinking.open else Stage.FIRST

    @property
    def width(self) -> int:
        """Entries of its masks."""
        return self._tokenizer.vocab_size

    @property
    def error(self) -> str:
        """Why it can't go on; empty: it can."""
        return self.matcher.get_error() if self.matcher.is_error() else ""

    def feed(self, token_id: int) -> None:
        """The token that was chosen."""
        thinking = self._thinking
        if thinking is not None and self.stage is Stage.FIRST:
            # A tag may begin as that of a call does, which then comes first.
            thinks = token_id == thinking.begin and not self.matcher.validate_tokens([token_id])
            self.stage = Stage.THINKING if thinks else Stage.BOUND
        if thinking is None or self.stage is Stage.BOUND:
            self.matcher.consume_token(token_id)
            return
        self._last = [*self._last, token_id][-_TAG_TOKENS:]
        if thinking.over(self._last):
            self.stage = Stage.BOUND

    def amend(self, mask: NDArray[np.int32]) -> None:
        """Reasoning has its own rules: it may begin an answer, and doesn't end one. `mask` has a
        bit for each token, of the matcher or all set.
        """
        thinking = self._thinking
        bits = mask.view(np.uint32)
        if self.stage is not Stage.THINKING:
            self._spell(bits)
        if thinking is None or self.stage is Stage.BOUND:
            return
        if self.stage is Stage.FIRST:
            if thinking.begin is not None:
                bits[thinking.begin // 32] |= np.uint32(1 << thinking.begin % 32)
            return
        for token_id in thinking.eos:
            bits[token_id // 32] &= ~np.uint32(1 << token_id % 32)

    def _spell(self, bits: NDArray[np.uint32]) -> None:
        """A text that must come next is tokenized by llguidance as any text. If that makes one of
        the tokenizer's special tokens of it, or the tokenizer normalizes it to another text, then
        the mask has a token that the matcher refuses. The text is written in other tokens instead.
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
