"""What one request changes of logits before a token is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from protocol.requests import Sampling

# What a request forbids. It is finite, and more than what a constraint leaves to what it forbids:
# if both forbid everything together, the constraint has its way.
FORBIDDEN: Final = -3e4
# Before the answer there is none that a text could begin with.
_NO_TOKEN: Final = -1


@dataclass(frozen=True)
class Adjustments:
    """All of it is added to logits, so it can be done in any order.

    `prompt_tokens` of the sequence are no part of the answer. `banned` are sequences of tokens, of
    which the last one isn't chosen after the others; `ends` not among the first `min_tokens`.
    """

    prompt_tokens: int
    repetition_penalty: float = 1.0
    # Of prompt and answer.
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
        """Whether it matters how often a token has come."""
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    @property
    def repeats(self) -> bool:
        return self.repetition_penalty != 1.0

    @property
    def phrases(self) -> tuple[tuple[int, ...], ...]:
        """Those of the banned that depend on what came before."""
        return tuple(each for each in self.banned if len(each) > 1)

    def begin(self, token_ids: mx.array, vocabulary: int) -> History:
        """Where a sequence stands. `token_ids`: (tokens,), of prompt and answer."""
        answer = token_ids[self.prompt_tokens :]
        history = History(self, answer.shape[0], self._bias(vocabulary))
        if self.counts:
            history.counts = mx.zeros(vocabulary)
            if answer.shape[0]:
                history.counts = history.counts.at[answer].add(1.0)
        if self.repeats:
            last = token_ids[-self.repetition_tokens :].astype(mx.int32)
            # What is repeated in front of it changes nothing, and is gone when the first one is.
            missing = mx.repeat(last[:1], self.repetition_tokens - last.shape[0])
            history.window = mx.concatenate([missing, last])
        if self.phrases:
            length = max(map(len, self.phrases)) - 1
            end = answer[-length:].astype(mx.int32)
            history.end = mx.concatenate([mx.full(length - end.shape[0], _NO_TOKEN), end])
        return history

    def _bias(self, vocabulary: int) -> mx.array | None:
        """What is the same for every token of the answer, (vocabulary,)."""
        words = [each[0] for each in self.banned if len(each) == 1]
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
class History:
    """Of one sequence. `position`: how many tokens its answer has.

    `counts`: (vocabulary,), how often the answer has each token. `window`: (tokens,), the ids that
    are not to be repeated, the last one at the end. `end`: (tokens,), the answer's last ids.
    """

    adjustments: Adjustments
    position: int
    bias: mx.array | None = None
    counts: mx.array | None = None
    window: mx.array | None = None
    end: mx.array | None = None


def make_adjustments(
    sampling: Sampling,
    prompt_tokens: int,
    most_tokens: int,
    ends: Sequence[int],
    banned: Sequence[Sequence[int]] = (),
) -> Adjustments | None:
    """None if a request changes nothing. Prompt and answer have `most_tokens` together, and `ends`
    end an answer.
    """
    penalty = 1.0 if sampling.repetition_penalty is None else sampling.repetition_penalty
    made = Adjustments(
        prompt_tokens,
        repetition_penalty=penalty,
        repetition_tokens=min(sampling.repetition_context_tokens, most_tokens),
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        logit_bias=sampling.logit_bias,
        allowed=sampling.allowed_token_ids,
        banned=tuple(tuple(each) for each in banned),
        min_tokens=sampling.min_tokens if ends else 0,
        ends=tuple(ends),
    )
    changes = made.repeats or made.counts or made.logit_bias or made.allowed or made.banned
    return made if changes or made.min_tokens else None
