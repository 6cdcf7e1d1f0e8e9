"""Tokens to the parts of an answer, for one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.answers import AnswerPart, Text
from protocol.requests import Generate
from worker.mlx_lm.text import Detokenizer, detokenizer_after
from worker.text.assembly import Assembly
from worker.text.format import AnswerFormat, opening_header, opening_state
from worker.text.splitter import HarmonySplitter, PlainSplitter, Splitter, TagSplitter


class AnswerStream:
    """Detokenizes one request's answer and tells its parts apart. It ends at a stop sequence, even
    one that straddles tokens, and after the only call that is wanted.

    What it does depends on the tokens alone: one that is fed those that another has seen goes on
    as that one would.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        assembly: Assembly,
        splitter: Splitter,
        bound: Callable[[int, bool], bool] | None = None,
    ) -> None:
        """`bound` tells of a token, and whether text came before it, that it is of what a
        constraint is for: no tags are in there, only texts like them.
        """
        self._bound = bound
        self._spoken = False
        self._detokenizer = detokenizer
        self._assembly = assembly
        self._splitter = splitter
        self.reasoning_tokens = 0

    @property
    def stopped(self) -> bool:
        """No token after this one is wanted."""
        return self._assembly.stopped or self._assembly.has_all_calls

    @property
    def stop_sequence(self) -> str | None:
        """The one that ended it, if one did."""
        return self._assembly.stop_sequence

    @property
    def ended_with_calls(self) -> bool:
        """It has some, and no stop sequence ended it."""
        return self._assembly.calls > 0 and not self._assembly.stopped

    def add(self, token_id: int) -> list[AnswerPart]:
        """The parts that are certain now."""
        if self._bound is not None and self._bound(token_id, self._spoken):
            self._splitter.settle()
        was_reasoning = self._splitter.reasoning
        self._detokenizer.add_token(token_id)
        self._feed(self._detokenizer.last_segment)
        self.reasoning_tokens += was_reasoning or self._splitter.reasoning
        parts = self._assembly.take()
        self._spoken = self._spoken or any(isinstance(each, Text) for each in parts)
        return parts

    def finish(self, *, complete: bool) -> list[AnswerPart]:
        """What was held back; `complete` if the model ended the answer, by a token of its own."""
        if not self.stopped:
            self._detokenizer.finalize()
            self._feed(self._detokenizer.last_segment)
            self._splitter.finish(complete=complete)
        self._assembly.finish()
        return self._assembly.take()

    def _feed(self, text: str) -> None:
        if text:
            self._splitter.feed(text)


def answer_stream(
    generate: Generate, prompt_ids: list[int], tokenizer: Any, format_: AnswerFormat
) -> AnswerStream:
    """For the answer to a prompt, by a model of this format. The definitions of tools are JSON."""
    tools = generate.tools
    assembly = Assembly(
        generate.stop,
        parallel=tools is None or tools.parallel,
        plain=not generate.parsed,
        include_stop=generate.include_stop,
    )
    calls = tools is not None and tools.choice != "none"
    splitter: Splitter
    if not generate.parsed:
        splitter = PlainSplitter(assembly)
    elif format_.harmony:
        header = opening_header(prompt_ids, tokenizer)
        splitter = HarmonySplitter(assembly, calls=calls, header=header)
    else:
        definitions = tools.known if tools is not None and calls else None
        state = opening_state(prompt_ids, tokenizer, format_)
        splitter = TagSplitter(
            format_,
            assembly,
            definitions,
            calls=calls,
            state=state,
            bounded=generate.reasoning_tokens is not None,
        )
    bound = None if generate.constraint is None else _bound(format_, tokenizer, calls=calls)
    return AnswerStream(detokenizer_after(prompt_ids, tokenizer), assembly, splitter, bound)


def _bound(format_: AnswerFormat, tokenizer: Any, *, calls: bool) -> Callable[[int, bool], bool]:
    """For an answer that must match something."""
    tags = [] if format_.reasoning is None else [format_.reasoning.start]
    if calls:
        tags += [each.start for each in format_.blocks]
    ids = [tokenizer.encode(each, add_special_tokens=False) for each in tags]
    openers = frozenset(each[0] for each in ids if len(each) == 1)
    if calls and any(len(each) > 1 for each in ids):
        # Only its text tells such a tag.
        return lambda _, spoken: spoken
    return lambda token_id, _: token_id not in openers
