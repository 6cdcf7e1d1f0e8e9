"""From a request to the constraint of its sequence."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from llguidance import LLMatcher

from protocol.requests import Constraint, Generate, Tools
from worker.structure.compiled import Compiled
from worker.structure.grammar import (
    ConstraintError,
    Function,
    ToolGrammar,
    forced_calls,
    form_of,
    functions_of,
    lark_rule,
    possible_calls,
    unenforced,
)
from worker.structure.sampler import Constrained, Thinking
from worker.text.families import template_text
from worker.text.format import AnswerFormat, opening_state

_CALL_END: Final = "<|call|>"
_ANY_OBJECT: Final = {"type": "object"}
# What isn't enforced where one schema can't be done.
_LOOSE: Final = ("parameters of functions without strict",)
_FINAL_MESSAGE: Final = re.compile(
    r"<\|channel\|>\s*final\s*(?:<\|constrain\|>[^<]*)?<\|message\|>\Z"
)


class Constraints:
    """What the answers of one model can be made to match."""

    def __init__(self, compiled: Compiled, tokenizer: Any, format_: AnswerFormat) -> None:
        """`tokenizer` is mlx-lm's wrapper."""
        self._compiled = compiled
        self._tokenizer = tokenizer
        self._format = format_

    def of(
        self, generate: Generate, prompt_ids: list[int], delivered: list[int]
    ) -> Constrained | None:
        """None: the answer may be anything. `delivered` is where it stands already.

        Raises:
            ConstraintError: it can't be done, and why.
        """
        tools, constraint = generate.tools, generate.constraint
        calls = tools is not None and tools.choice != "none"
        left_out: tuple[str, ...] = ()
        if tools is not None and calls:
            # Who must call something answers nothing.
            matcher, left_out = self._calls(tools, constraint if tools.choice == "auto" else None)
        elif constraint is not None:
            matcher = self._compiled.find(constraint)
        else:
            return None
        if matcher is None:
            return None
        thinking = self._thinking(generate, prompt_ids, calls=calls)
        constrained = Constrained(
            matcher,
            self._compiled.tokenizer,
            tuple(delivered),
            thinking,
            (*left_out, *unenforced(matcher)),
        )
        if error := constrained.begin().error:
            raise ConstraintError(f"what was delivered doesn't match it: {error}")
        return constrained

    def _calls(
        self, tools: Tools, constraint: Constraint | None
    ) -> tuple[LLMatcher | None, tuple[str, ...]]:
        """Of calls that must be, or must be as their schemas say; or an answer that must match. And
        what of them was given up.
        """
        functions = functions_of(tools)
        answer = None if constraint is None else lark_rule(constraint)
        forced = tools.choice == "required" or answer is not None
        if not forced and not any(each.strict for each in functions):
            return None, ()
        special = self._compiled.special
        form = form_of(self._format.family, template_text(self._tokenizer), special)
        if form is None:
            if not forced:
                return None, ()
            raise ConstraintError(
                f"nobody knows how this model's family ({self._format.family}) begins a call: "
                'use tool_choice "auto"'
            )
        if answer is not None and form.is_bare:
            raise ConstraintError(
                "calls of this model's family are JSON without a tag, and can't be told from an "
                "answer that must match something: send tools or a constraint"
            )
        if form.thought and _CALL_END not in special:
            # It ends the answer, too.
            form = replace(form, call=form.call.removesuffix(_CALL_END))

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
            # A schema that says nothing of strictness is a wish.
            plain = [each if each.strict else _any_arguments(each) for each in functions]
            if plain == functions:
                raise
            grammar = make(plain)
            return None if grammar is None else self._compiled.find_grammar(*grammar), _LOOSE

    def _thinking(
        self, generate: Generate, prompt_ids: list[int], *, calls: bool
    ) -> Thinking | None:
        """What comes before the part that is bound; None: nothing."""
        format_, tokenizer = self._format, self._tokenizer
        eos = tuple(tokenizer.eos_token_ids)
        if not generate.parsed:
            return None
        if format_.harmony:
            if calls:
                # Part of the grammar.
                return None

            def at_last_message(last: list[int]) -> bool:
                return _FINAL_MESSAGE.search(tokenizer.decode(last)) is not None

            return Thinking(None, at_last_message, eos, open=True)
        if format_.reasoning is None:
            return None
        start, end = (
            tokenizer.encode(each, add_special_tokens=False) for each in format_.reasoning
        )
        opened = opening_state(prompt_ids, tokenizer, format_) == "reasoning"
        # Written in ordinary tokens it can't be told from what a constraint may allow.
        special = self._compiled.special.values()
        begin = start[0] if start[0] in special and generate.thinks else None
        if len(end) == 1:
            return Thinking(begin, lambda last: last[-1:] == end, eos, opened)
        tag = format_.reasoning.end
        return Thinking(begin, lambda last: tag in tokenizer.decode(last), eos, opened)


def _any_arguments(function: Function) -> Function:
    return function._replace(schema=_ANY_OBJECT)
