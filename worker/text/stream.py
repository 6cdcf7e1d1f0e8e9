"""Turns the tokens of one request into the parts of its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.answers import AnswerPart, Text
from protocol.requests import Generate
from worker.calls.assembly import Assembly
from worker.mlx_lm.text import Detokenizer, detokenizer_after
from worker.text.format import AnswerFormat, opening_header, opening_state
from worker.text.splitter import HarmonySplitter, PlainSplitter, Splitter, TagSplitter


class AnswerStream:
    """Detokenizes one request's answer and splits it into parts. The answer ends at a stop
    sequence, even one that straddles tokens, and after a call if only one call is wanted.

    The parts depend on the tokens alone: a new stream that gets the tokens of an earlier stream
    goes on as the earlier stream would.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        assembly: Assembly,
        splitter: Splitter,
        bound: Callable[[int, bool], bool] | None = None,
        opener: int | None = None,
    ) -> None:
        """`bound` gets a token id, and whether text came before the token. It returns True if the
        token is in the part that must match a constraint. That part has no tags, only texts that
        look like tags. `opener` is the token that opens reasoning; None: no single token does.
        """
        self._bound = bound
        self._spoken = False
        self._detokenizer = detokenizer
        self._assembly = assembly
        self._splitter = splitter
        self._opener = opener
        self.reasoning_tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether the answer has ended, so that no other token is wanted."""
        return self._assembly.over

    @property
    def stop_sequence(self) -> str | None:
        """The stop sequence that ended the answer; None if none did."""
        return self._assembly.stop_sequence

    @property
    def ended_with_calls(self) -> bool:
        """Whether the answer has calls, and no stop sequence ended it."""
        return self._assembly.calls > 0 and self.stop_sequence is None

    def add(self, token_id: int) -> list[AnswerPart]:
        """Take in a token. Return the parts that have become certain."""
        if self._bound is not None and self._bound(token_id, self._spoken):
            self._splitter.expect_text()
        if token_id == self._opener:
            self._splitter.expect_reasoning()
        was_reasoning = self._splitter.reasoning
        self._detokenizer.add_token(token_id)
        self._feed(self._detokenizer.last_segment)
        self.reasoning_tokens += was_reasoning or self._splitter.reasoning
        parts = self._assembly.collect()
        self._spoken = self._spoken or any(isinstance(part, Text) for part in parts)
        return parts

    def finish(self, *, complete: bool) -> list[AnswerPart]:
        """End the answer. Return the parts that were held back. `complete`: the model ended the
        answer by a token.
        """
        if not self.stopped:
            self._detokenizer.finalize()
            self._feed(self._detokenizer.last_segment)
            self._splitter.finish(complete=complete)
        self._assembly.finish()
        return self._assembly.collect()

    def _feed(self, text: str) -> None:
        if text:
            self._splitter.feed(text)


def answer_stream(
    generate: Generate, prompt_ids: list[int], tokenizer: Any, format_: AnswerFormat
) -> AnswerStream:
    """The stream of a request's answer, by a model whose answers have this format."""
    tools = generate.tools
    assembly = Assembly(
        generate.stop,
        parallel=tools is None or tools.parallel,
        plain=not generate.parsed,
        include_stop=generate.include_stop,
    )
    calls = tools is not None and tools.choice != "none"
    splitter: Splitter
    opener = None
    if not generate.parsed:
        splitter = PlainSplitter(assembly)
    elif format_.harmony:
        header = opening_header(prompt_ids, tokenizer)
        splitter = HarmonySplitter(assembly, calls=calls, header=header)
    else:
        definitions = tools.known if tools is not None and calls else None
        state = opening_state(prompt_ids, tokenizer, format_)
        opener = _opener(format_, tokenizer)
        splitter = TagSplitter(
            format_,
            assembly,
            definitions,
            calls=calls,
            state=state,
            bounded=generate.reasoning_tokens is not None,
            has_opener=opener is not None,
        )
    bound = None if generate.constraint is None else _bound(format_, tokenizer, calls=calls)
    detokenizer = detokenizer_after(prompt_ids, tokenizer)
    return AnswerStream(detokenizer, assembly, splitter, bound, opener)


def _opener(format_: AnswerFormat, tokenizer: Any) -> int | None:
    """The token that opens reasoning; None: the tag has several tokens, or there is none."""
    if format_.reasoning is None:
        return None
    ids = tokenizer.encode(format_.reasoning.start, add_special_tokens=False)
    return int(ids[0]) if len(ids) == 1 else None


def _bound(format_: AnswerFormat, tokenizer: Any, *, calls: bool) -> Callable[[int, bool], bool]:
    """The function `bound` of an `AnswerStream`, for an answer with a constraint."""
    tags = [] if format_.reasoning is None else [format_.reasoning.start]
    if calls:
        tags += [block.start for block in format_.blocks]
    ids = [tokenizer.encode(tag, add_special_tokens=False) for tag in tags]
    openers = frozenset(tag_ids[0] for tag_ids in ids if len(tag_ids) == 1)
    if calls and any(len(tag_ids) > 1 for tag_ids in ids):
        # One token can't show a tag of several tokens. Text shows that there was no tag.
        return lambda _, spoken: spoken
    return lambda token_id, _: token_id not in openers
