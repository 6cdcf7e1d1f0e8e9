"""Compiled constraints of one model: tried, compiled beside the engine, and kept for a while.

A grammar is compiled in another process first, under a limit that the kernel keeps. llguidance's
own limits bound the size of the result and not the time: a multiple of a large number takes
minutes, and thousands of optional properties take twenty seconds. A thread in there can't be ended,
and a recursion that goes too deep ends its process.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import llguidance
import llguidance.hf
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from protocol.requests import Constraint
from worker.mlx_lm.text import tokenizer_inside
from worker.structure import trial_process
from worker.structure.grammar import ConstraintError, grammar_of, one_line
from worker.structure.sampler import Matching

_CPU_S: Final = 0.5
# However slow the machine is, nobody waits longer.
_LONGEST_S: Final = 20.0
# Some 20 MB of a lexer's states, and milliseconds of a step.
_LIMITS: Final = {
    "max_items_in_row": 1000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
}
logger = logging.getLogger(__name__)
# Of an answer, to see whether it can be written.
_STEPS: Final = 48
# Less than what the gateway takes for noise of a footprint: no request waits for their memory.
_MOST_BYTES: Final = 24_000_000
# Of a refusal, beside its texts.
_REFUSAL_BYTES: Final = 1000


class Compiled:
    """Grammars by their text, ready to be copied for an answer; refusals too, since whoever sends
    one often sends it again. For several threads.

    They are beside MLX's account, so they are bounded in number and in bytes; who was used least
    recently goes first.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocabulary: int,
        eos_token_ids: Iterable[int],
        most_kept: int = 64,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        """`tokenizer` is mlx-lm's wrapper; the model's logits are `vocabulary` wide, and masks
        `width`.
        """
        self._inside = tokenizer_inside(tokenizer)
        # Logits may be wider than the vocabulary. What has no text is never allowed.
        self.width = max(vocabulary, len(tokenizer))
        self._most_kept = most_kept
        self._most_bytes = most_bytes
        self._eos_token_ids = sorted(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._building = threading.Lock()
        # The last one used last.
        self._kept: OrderedDict[Constraint | str, _Kept] = OrderedDict()
        self._bytes = 0

    @property
    def special(self) -> dict[str, int]:
        """Tokens that are no text to llguidance, and don't end an answer. The tokenizer's own list
        has fewer: tags aren't in it.
        """
        trie = self.tokenizer
        added = self._inside.added_tokens_decoder
        return {
            each.content: token_id
            for token_id, each in added.items()
            if trie.is_special_token(token_id) and token_id not in self._eos_token_ids
        }

    def __contains__(self, key: Constraint | str) -> bool:
        return key in self._kept

    @property
    def bytes_(self) -> int:
        """What is kept takes so much at most."""
        return self._bytes

    def find(self, constraint: Constraint) -> LLMatcher:
        """One that has seen nothing yet; whoever feeds it makes a copy.

        Raises:
            ConstraintError: it can't be compiled, or not within its bounds.
        """
        return self._find(constraint, lambda: (text := grammar_of(constraint), text))

    def find_grammar(self, grammar: str, tried: str) -> LLMatcher:
        """The same of a grammar that is ours; `tried` stands for it where no special tokens are
        known.
        """
        return self._find(grammar, lambda: (grammar, tried))

    def _find(self, key: Constraint | str, texts: Callable[[], tuple[str, str]]) -> LLMatcher:
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
        if kept is None:
            try:
                kept = self._compile(*texts())
            except ConstraintError as error:
                kept = _Kept(error, _REFUSAL_BYTES)
            self._keep(key, kept)
        if isinstance(kept.found, ConstraintError):
            raise ConstraintError(kept.found.reason)
        return kept.found

    def _compile(self, grammar: str, tried: str) -> _Kept:
        reason, bytes_ = try_grammar(tried)
        if reason is None:
            matcher = LLMatcher(self.tokenizer, grammar, log_level=0, limits=parser_limits())
            reason = matcher.get_error() or self._unwritable(matcher)
            if not reason:
                return _Kept(matcher, bytes_)
        raise ConstraintError(one_line(reason))

    def _unwritable(self, matcher: LLMatcher) -> str:
        """Why this model's tokens can't write what it asks for, as far as an answer of some tokens
        shows; empty: they can. The trial has other tokens: all of one byte.
        """
        matching = Matching(matcher.deep_copy(), self.tokenizer)
        mask = allocate_token_bitmask(1, self.width)
        for step in range(_STEPS):
            if matching.matcher.is_stopped():
                break
            fill_next_token_bitmask(matching.matcher, mask)
            matching.amend(mask[0])
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            if not len(allowed):
                break
            matching.feed(int(allowed[step * 7919 % len(allowed)]))
        if matching.matcher.stop_reason() not in ("NoExtensionBias", "InternalError"):
            # A text that grows too complex may be one that no model would write.
            return ""
        return f"its text can't be written in this model's tokens: {matching.error}"

    def _keep(self, key: Constraint | str, kept: _Kept) -> None:
        text = key if isinstance(key, str) else key.source
        kept = kept._replace(bytes=kept.bytes + sys.getsizeof(text))
        with self._lock:
            if key in self._kept:
                return  # Another thread compiled it meanwhile.
            self._kept[key] = kept
            self._bytes += kept.bytes
            while len(self._kept) > self._most_kept or self._bytes > self._most_bytes:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= gone.bytes

    @property
    def tokenizer(self) -> LLTokenizer:
        """Made once, since it takes some 100 MB for a large vocabulary. llguidance holds the
        interpreter's lock meanwhile: half a second in which the engine begins no step.
        """
        with self._building:
            if self._tokenizer is None:
                began_s = time.perf_counter()
                try:
                    self._tokenizer = llguidance.hf.from_tokenizer(
                        self._inside,
                        n_vocab=self.width,
                        eos_token=self._eos_token_ids,
                    )
                except ValueError as error:
                    raise ConstraintError(
                        f"This model's tokenizer can't be used for it: {error}."
                    ) from error
                logger.info(
                    "The trie of %d tokens for constraints took %.2f s.",
                    self.width,
                    time.perf_counter() - began_s,
                )
            return self._tokenizer


class TrialOutcome(NamedTuple):
    """Why a grammar can't be compiled, None: it can; and what it takes then, at most."""

    refusal: str | None
    bytes: int = 0


def parser_limits() -> LLParserLimits:
    """Of what any grammar may take."""
    # The bounds are no booleans, as types without names have it.
    return LLParserLimits(**_LIMITS, verbose_errors=False)  # type: ignore[arg-type]


def try_grammar(grammar: str) -> TrialOutcome:
    """The interpreter's lock is free meanwhile."""
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-I",
                "-S",
                trial_process.__file__,
                str(Path(llguidance.__file__).parent),
                str(_CPU_S),
                *(f"{name}={value}" for name, value in _LIMITS.items()),
            ],
            input=grammar.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LONGEST_S,
            check=False,
            # Else CPython forks on macOS, where a process that has touched Metal must not.
            close_fds=False,
        )
    except subprocess.TimeoutExpired:
        return TrialOutcome("it takes too long to compile")
    if done.returncode == 0:
        taken_bytes, _, refusal = done.stdout.decode(errors="replace").partition("\n")
        return TrialOutcome(refusal or None, int(taken_bytes))
    if done.returncode == -signal.SIGPROF:
        return TrialOutcome(f"it is too complex, and takes more than {_CPU_S:g} s to compile")
    return TrialOutcome("it is too complex, and takes too much memory to compile")


class _Kept(NamedTuple):
    found: LLMatcher | ConstraintError
    bytes: int
