"""The budget of reasoning tokens. Once the budget is used up, reasoning is closed by force."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from worker.text.format import AnswerFormat, opening_state


@dataclass(frozen=True)
class ReasoningTokens:
    """The tags of a model's reasoning, as token ids. The tokens of `closing` end reasoning by
    force. After that, the last token of `reopening` can't follow its other tokens.
    """

    start: list[int]
    end: list[int]
    closing: list[int]
    reopening: list[int]


class ReasoningBudget:
    """A logits processor that closes reasoning after `budget` tokens. It depends on the tokens
    alone, so a sequence can go on in another worker. It never waits for the tokens' ids, so a step
    begins before the ids are known.
    """

    def __init__(
        self, marks: ReasoningTokens, budget: int, prompt_tokens: int, *, opened: bool
    ) -> None:
        """`opened`: the prompt has opened reasoning."""
        self._marks = marks
        self._budget = budget
        self._prompt_tokens = prompt_tokens
        self._opened = opened

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """The logits of the next token (1, vocabulary), minus infinity for forbidden tokens.
        `tokens`: the ids so far (tokens,), of prompt and answer.
        """
        answer = tokens[self._prompt_tokens :]
        count = answer.shape[0]
        if count < self._budget:
            return logits
        inside = self._inside(answer)
        # A token counts if reasoning is open before it and after it, so tags don't count.
        exhausted = mx.sum(inside[:-1] & inside[1:]) >= self._budget
        closing, none = self._marks.closing, mx.array(-1)
        forced = mx.where(inside[-1], closing[0], none)
        for done in range(1, min(len(closing), count + 1)):
            begun = inside[count - done] & _ends(answer, closing[:done])[-1]
            forced = mx.where(begun, closing[done], forced)
        forced = mx.where(exhausted, forced, none)
        vocabulary = mx.arange(logits.shape[-1])[None]
        allowed = (vocabulary == forced) | (forced < 0)
        if self._marks.reopening and count:
            reopens = exhausted & _ends(answer, self._marks.reopening[:-1])[-1]
            allowed = allowed & ~(reopens & (vocabulary == self._marks.reopening[-1]))
        return mx.where(allowed, logits, mx.array(-mx.inf, logits.dtype))

    def _inside(self, answer: mx.array) -> mx.array:
        """Whether reasoning is open before the answer and after each token, (tokens + 1,)."""
        places = mx.arange(1, answer.shape[0] + 1)
        started = mx.where(_ends(answer, self._marks.start), places, -1)
        ended = mx.where(_ends(answer, self._marks.end), places, -1)
        before = mx.array([0 if self._opened else -1])
        return mx.cummax(mx.concatenate([before, started])) > mx.cummax(
            mx.concatenate([mx.array([-1]), ended])
        )


def reasoning_budget(
    prompt_ids: list[int], budget: int, tokenizer: Any, format_: AnswerFormat
) -> ReasoningBudget | None:
    """The budget for the answer to a prompt; None if this model doesn't think.

    Raises:
        ValueError: the model's tags are ordinary text, which can come in several ways as tokens.
    """

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    if format_.harmony:
        # `closing` ends before the name of a channel, so the model chooses the next channel.
        marks = ReasoningTokens(
            ids("<|channel|>analysis<|message|>"),
            ids("<|end|>"),
            ids("<|end|><|start|>assistant<|channel|>"),
            ids("<|channel|>analysis"),
        )
        return ReasoningBudget(marks, budget, len(prompt_ids), opened=False)
    if format_.reasoning is None:
        return None
    start, end = map(ids, format_.reasoning)
    added = set(tokenizer.get_added_vocab().values())
    if not (added & set(start) and end[-1] in added):
        raise ValueError(f"{format_.reasoning.end} is ordinary text to this model.")
    opened = opening_state(prompt_ids, tokenizer, format_) == "reasoning"
    marks = ReasoningTokens(start, end, end, [])
    return ReasoningBudget(marks, budget, len(prompt_ids), opened=opened)


def _ends(tokens: mx.array, tag: list[int]) -> mx.array:
    """For each token whether the tag ends with it, (tokens,)."""
    count = tokens.shape[0]
    ends = mx.ones((count,), dtype=mx.bool_)
    for back, token_id in enumerate(reversed(tag)):
        same = (tokens == token_id)[: max(0, count - back)]
        ends = ends & mx.concatenate([mx.zeros((count - same.shape[0],), dtype=mx.bool_), same])
    return ends
