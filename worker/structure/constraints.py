"""The constraints of one model's answers. A compiled grammar is cached for later requests.

A grammar is tried in another process before it is compiled in this one, beside the engine.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

import llguidance.hf
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from protocol.requests import ChatPrompt, Constraint, Generate, Tools
from worker.mlx_lm.text import tokenizer_inside
from worker.structure.grammar import (
    CallForm,
    ConstraintError,
    Function,
    ToolGrammar,
    forced_calls,
    form_of,
    functions_of,
    grammar_of,
    lark_rule,
    one_line,
    possible_calls,
    unenforced,
)
from worker.structure.sampler import Matching, SequenceConstraint, Thinking
from worker.structure.trial import LIMITS, STEPS, try_grammar
from worker.text.families import template_text
from worker.text.format import AnswerFormat, opening_state

_CALL_END: Final = "<|call|>"
_ANY_OBJECT: Final = {"type": "object"}
# The name of what isn't enforced if the schemas of functions without strict can't be compiled.
_LOOSE: Final = ("parameters of functions without strict",)
_FINAL_MESSAGE: Final = re.compile(
    r"<\|channel\|>\s*final\s*(?:<\|constrain\|>[^<]*)?<\|message\|>\Z"
)
# The most memory of cached grammars. For the gateway so few bytes are noise of a footprint, so no
# request waits for them.
_MOST_BYTES: Final = 24_000_000
# The memory of a cached refusal, without the text of its constraint.
_REFUSAL_BYTES: Final = 1000
logger = logging.getLogger(__name__)


class Constraints:
    """Makes the constraints of one model's answers."""

    def __init__(self, compiled: GrammarCache, tokenizer: Any, format_: AnswerFormat) -> None:
        """`tokenizer` is mlx-lm's wrapper."""
        self._compiled = compiled
        self._tokenizer = tokenizer
        self._format = format_

    def of(
        self, generate: Generate, prompt_ids: list[int], delivered: list[int]
    ) -> SequenceConstraint | None:
        """The constraint of a request's answer, of which the tokens `delivered` exist already;
        None: the answer may be anything.

        Raises:
            ConstraintError: this model's answers can't be made to match.
        """
        tools, constraint = generate.tools, generate.constraint
        calls = tools is not None and tools.choice != "none"
        left_out: tuple[str, ...] = ()
        if tools is not None and calls:
            # If a call is required, the answer has no text that a constraint could be for.
            matcher, left_out = self._calls(tools, constraint if tools.choice == "auto" else None)
        elif constraint is not None:
            matcher = self._compiled.find(constraint)
        else:
            return None
        if matcher is None:
            return None
        constrained = SequenceConstraint(
            matcher,
            self._compiled.tokenizer,
            tuple(delivered),
            self._thinking(generate, prompt_ids, calls=calls),
            (*left_out, *unenforced(matcher)),
        )
        if error := constrained.make_matching().error:
            raise ConstraintError(f"what was delivered doesn't match it: {error}")
        return constrained

    def _calls(
        self, tools: Tools, constraint: Constraint | None
    ) -> tuple[LLMatcher | None, tuple[str, ...]]:
        """A matcher for an answer with tools, and the names of what isn't enforced. The matcher
        demands calls; or calls or text that matches `constraint`; or, in any text, calls that
        follow their schemas. None: the answer may be anything.
        """
        functions = functions_of(tools)
        answer = None if constraint is None else lark_rule(constraint)
        forced = tools.choice == "required" or answer is not None
        if not forced and not any(function.strict for function in functions):
            return None, ()
        special = self._compiled.special
        form = self._call_form(special, forced=forced, answers=answer is not None)
        if form is None:
            return None, ()

        def make(functions: list[Function]) -> ToolGrammar | None:
            if forced:
                return forced_calls(
                    form, functions, special, parallel=tools.parallel, answer=answer
                )
            return possible_calls(form, functions, special, parallel=tools.parallel)

        grammar = make(functions)
        if grammar is None:
            return None, ()
        try:
            return self._compiled.find_grammar(*grammar), ()
        except ConstraintError:
            # Schemas without strict need not be enforced.
            plain = [
                function if function.strict else function._replace(schema=_ANY_OBJECT)
                for function in functions
            ]
            if plain == functions:
                raise
            grammar = make(plain)
            return None if grammar is None else self._compiled.find_grammar(*grammar), _LOOSE

    def _call_form(
        self, special: dict[str, int], *, forced: bool, answers: bool
    ) -> CallForm | None:
        """How the model writes calls; None if that is unknown and calls are not `forced`.
        `answers`: an answer that matches a constraint may stand in place of calls.
        """
        form = form_of(self._format.family, template_text(self._tokenizer), special)
        if form is None:
            if not forced:
                return None
            raise ConstraintError(
                f"how this model's family ({self._format.family}) begins a call is unknown: "
                'use tool_choice "auto"'
            )
        if answers and form.is_bare:
            raise ConstraintError(
                "calls of this model's family are JSON without a tag, and can't be told from an "
                "answer that must match something: send tools or a constraint"
            )
        if form.thought and _CALL_END not in special:
            # The tag ends the answer, so the grammar leaves it out.
            return replace(form, call=form.call.removesuffix(_CALL_END))
        return form

    def _thinking(
        self, generate: Generate, prompt_ids: list[int], *, calls: bool
    ) -> Thinking | None:
        """The reasoning that may come before the part that must match; None: none may."""
        format_, tokenizer = self._format, self._tokenizer
        eos = tuple(tokenizer.eos_token_ids)
        if not generate.parsed:
            return None
        if format_.harmony:
            if calls:
                # The grammar of calls allows the reasoning itself.
                return None

            def at_last_message(last: list[int]) -> bool:
                return _FINAL_MESSAGE.search(tokenizer.decode(last)) is not None

            return Thinking(None, at_last_message, eos, open=True)
        if format_.reasoning is None:
            return None
        start, end = (tokenizer.encode(tag, add_special_tokens=False) for tag in format_.reasoning)
        opened = opening_state(prompt_ids, tokenizer, format_) == "reasoning"
        # A tag of ordinary tokens can't be told from text that the constraint may allow, and none
        # comes within a text that goes on.
        goes_on = isinstance(generate.prompt, ChatPrompt) and generate.prompt.goes_on
        thinks = start[0] in self._compiled.special.values() and generate.thinks and not goes_on
        begin = start[0] if thinks else None
        if len(end) == 1:
            return Thinking(begin, lambda last: last[-1:] == end, eos, opened)
        tag = format_.reasoning.end
        return Thinking(begin, lambda last: tag in tokenizer.decode(last), eos, opened)


class GrammarCache:
    """Caches compiled grammars, since clients often send the same constraint again. Each answer
    gets a copy of its grammar. Refusals are cached, too. Several threads may call the methods.

    MLX's account doesn't have the memory of grammars, so cached grammars are bounded in number and
    in bytes. The least recently used grammar is dropped first.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocabulary: int,
        eos_token_ids: Iterable[int],
        most_grammars: int = 64,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        """`tokenizer` is mlx-lm's wrapper; the model's logits are `vocabulary` wide."""
        self._inside = tokenizer_inside(tokenizer)
        # Entries of a mask. Logits may be wider than the tokenizer's vocabulary. Ids without a text
        # are never allowed.
        self._width = max(vocabulary, len(tokenizer))
        self._most_grammars = most_grammars
        self._most_bytes = most_bytes
        self._eos_token_ids = sorted(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._building = threading.Lock()
        # In the order of their last use.
        self._cached: OrderedDict[Constraint | str, _CachedGrammar] = OrderedDict()
        self._bytes = 0

    @property
    def special(self) -> dict[str, int]:
        """The ids, by text, of tokens that llguidance takes for special and that don't end an
        answer. The tokenizer's own list of special tokens lacks tags.
        """
        trie = self.tokenizer
        added = self._inside.added_tokens_decoder
        return {
            item.content: token_id
            for token_id, item in added.items()
            if trie.is_special_token(token_id) and token_id not in self._eos_token_ids
        }

    def __contains__(self, key: Constraint | str) -> bool:
        return key in self._cached

    @property
    def bytes_(self) -> int:
        """The most bytes that all cached grammars take."""
        return self._bytes

    def find(self, constraint: Constraint) -> LLMatcher:
        """The cached matcher of a constraint, which has seen no token. Copy it before you feed it.

        Raises:
            ConstraintError: the constraint can't be compiled, or not within the limits.
        """
        return self._find(constraint, lambda: (text := grammar_of(constraint), text))

    def find_grammar(self, grammar: str, tried: str) -> LLMatcher:
        """The cached matcher of a grammar of tools, as from `find`. The trial compiles `tried` in
        place of `grammar`, since it knows no special tokens.
        """
        return self._find(grammar, lambda: (grammar, tried))

    def _find(self, key: Constraint | str, texts: Callable[[], tuple[str, str]]) -> LLMatcher:
        with self._lock:
            cached = self._cached.get(key)
            if cached is not None:
                self._cached.move_to_end(key)
        if cached is None:
            try:
                cached = self._compile(*texts())
            except ConstraintError as error:
                cached = _CachedGrammar(error, _REFUSAL_BYTES)
            self._store(key, cached)
        if isinstance(cached.result, ConstraintError):
            raise ConstraintError(cached.result.reason)
        return cached.result

    def _compile(self, grammar: str, tried: str) -> _CachedGrammar:
        reason, bytes_ = try_grammar(tried)
        if reason is None:
            # A type checker would match the numbers of LIMITS with `verbose_errors`, too.
            limits = LLParserLimits(**LIMITS, verbose_errors=False)  # type: ignore[arg-type]
            matcher = LLMatcher(self.tokenizer, grammar, log_level=0, limits=limits)
            reason = matcher.get_error() or self._unwritable(matcher)
            if not reason:
                return _CachedGrammar(matcher, bytes_)
        raise ConstraintError(one_line(reason))

    def _unwritable(self, matcher: LLMatcher) -> str:
        """Why this model's tokens can't write a text that the grammar asks for; empty: they can.
        Only the first tokens of one answer are tried. The trial in another process can't tell this,
        since its tokens are single bytes.
        """
        matching = Matching(matcher.deep_copy(), self.tokenizer)
        mask = allocate_token_bitmask(1, self._width)
        for step in range(STEPS):
            if matching.matcher.is_stopped():
                break
            fill_next_token_bitmask(matching.matcher, mask)
            matching.amend(mask[0])
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            if not len(allowed):
                break
            matching.feed(int(allowed[step * 7919 % len(allowed)]))
        if matching.matcher.stop_reason() not in ("NoExtensionBias", "InternalError"):
            # If the tried text grew too complex, it may be a text that no model would write.
            return ""
        return f"its text can't be written in this model's tokens: {matching.error}"

    def _store(self, key: Constraint | str, cached: _CachedGrammar) -> None:
        text = key if isinstance(key, str) else key.source
        cached = cached._replace(bytes=cached.bytes + sys.getsizeof(text))
        with self._lock:
            if key in self._cached:
                return  # Another thread compiled it meanwhile.
            self._cached[key] = cached
            self._bytes += cached.bytes
            while len(self._cached) > self._most_grammars or self._bytes > self._most_bytes:
                _, gone = self._cached.popitem(last=False)
                self._bytes -= gone.bytes

    @property
    def tokenizer(self) -> LLTokenizer:
        """llguidance's form of the tokenizer, made once: it takes some 100 MB for a large
        vocabulary. llguidance holds the interpreter's lock meanwhile, for half a second in which
        the engine begins no step.
        """
        with self._building:
            if self._tokenizer is None:
                began_s = time.perf_counter()
                try:
                    self._tokenizer = llguidance.hf.from_tokenizer(
                        self._inside,
                        n_vocab=self._width,
                        eos_token=self._eos_token_ids,
                    )
                except ValueError as error:
                    raise ConstraintError(
                        f"This model's tokenizer can't be used for it: {error}."
                    ) from error
                logger.info(
                    "The trie of %d tokens for constraints took %.2f s.",
                    self._width,
                    time.perf_counter() - began_s,
                )
            return self._tokenizer


class _CachedGrammar(NamedTuple):
    result: LLMatcher | ConstraintError
    bytes: int
