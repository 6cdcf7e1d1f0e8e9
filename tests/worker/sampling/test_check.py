"""Tokens that are chosen for several positions at once are those of one call after the other."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import accumulate, takewhile

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.mlx_lm.guessing import RowGuesses
from worker.sampling.adjustments import Adjustments
from worker.sampling.batch import BatchSampler
from worker.sampling.scores import Score
from worker.sampling.settings import RowSampling

VOCABULARY = 24
TOKEN = st.integers(0, VOCABULARY - 1)
SAMPLING = st.builds(
    RowSampling,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 5]),
    min_p=st.sampled_from([0.0, 0.1]),
    position=st.integers(0, 100),
    xtc_probability=st.sampled_from([0.0, 0.5]),
    xtc_spared=st.just((3,)),
)


@dataclass(frozen=True)
class Settings:
    sampling: RowSampling | None
    adjustments: Adjustments | None
    token_ids: list[int]
    logprobs: int | None
    seed: int

    def join(self, sampler: BatchSampler[int], row: int) -> None:
        sampler.add(row, self.sampling, self.adjustments, self.token_ids, self.logprobs)

    def logits(self, position: int) -> mx.array:
        """The model's logits at a position of the answer, (vocabulary,)."""
        return mx.random.normal((VOCABULARY,), key=mx.random.key(self.seed + position)) * 3


@dataclass
class Text:
    token_ids: list[int] = field(default_factory=list)
    scores: list[Score | None] = field(default_factory=list)


@st.composite
def _settings(draw: st.DrawFn) -> Settings:
    prompt = draw(st.lists(TOKEN, min_size=1, max_size=6))
    answer = draw(st.lists(TOKEN, max_size=4))
    phrases = st.lists(TOKEN, min_size=1, max_size=3).map(tuple)
    adjustments = Adjustments(
        len(prompt),
        repetition_penalty=draw(st.sampled_from([1.0, 1.4])),
        repetition_tokens=draw(st.integers(1, 6)),
        frequency_penalty=draw(st.sampled_from([0.0, 1.5])),
        presence_penalty=draw(st.sampled_from([0.0, 1.5])),
        logit_bias=((1, 2.0),) if draw(st.booleans()) else (),
        banned=tuple(draw(st.lists(phrases, max_size=3))),
        min_tokens=draw(st.integers(0, 9)),
        ends=tuple(draw(st.sets(TOKEN, max_size=3))),
    )
    return Settings(
        draw(st.none() | SAMPLING),
        draw(st.sampled_from([None, adjustments])),
        prompt + answer,
        draw(st.sampled_from([None, 0, 2])),
        draw(st.integers(0, 1 << 30)),
    )


def _normalized(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _one_by_one(rows: list[Settings], tokens: int) -> list[Text]:
    logits = [mx.zeros((len(rows), 1, VOCABULARY))]
    sampler = BatchSampler[int](lambda: range(len(rows)), lambda: logits[0])
    for row, item in enumerate(rows):
        item.join(sampler, row)
    texts = [Text() for _ in rows]
    for index in range(tokens):
        logits[0] = mx.stack([row.logits(index) for row in rows])[:, None]
        for row, token_id in enumerate(sampler(_normalized(logits[0][:, 0])).tolist()):
            texts[row].token_ids.append(token_id)
            texts[row].scores.append(sampler.next_score(row))
    return texts


def _agreeing(drawn: list[int], guesses: list[int]) -> int:
    """How many guesses are right before the first wrong one."""
    agree = takewhile(lambda pair: pair[0] == pair[1], zip(drawn, guesses, strict=False))
    return sum(1 for _ in agree)


@given(st.lists(_settings(), min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_checked_tokens_are_those_of_one_call_after_the_other(
    rows: list[Settings], chance: random.Random
) -> None:
    """With right and wrong guesses, and calls without any in between. Guesses that are drawn from
    the same logits are right.
    """
    tokens, most = 8, 4
    expected = _one_by_one(rows, tokens + most + 1)
    present = list(range(len(rows)))
    logits = [mx.zeros((1, 1, 1))]
    sampler = BatchSampler[int](lambda: present, lambda: logits[0])
    for row, item in enumerate(rows):
        item.join(sampler, row)
    texts = [Text() for _ in rows]

    def record(row: int, token_ids: list[int]) -> None:
        texts[row].token_ids += token_ids
        texts[row].scores += [sampler.next_score(row) for _ in token_ids]

    while present := [row for row in present if len(texts[row].token_ids) < tokens]:
        done = {row: len(texts[row].token_ids) for row in present}
        begun = [row for row in present if done[row]]
        draw = sampler.draw_guesses(begun) if begun else None
        for ahead in range(chance.randrange(most) if draw else 0):
            ahead_logits = [rows[row].logits(done[row] + ahead) for row in begun]
            assert draw(mx.stack(ahead_logits)).tolist() == [
                expected[row].token_ids[done[row] + ahead] for row in begun
            ]
        if chance.random() < 0.3:
            logits[0] = mx.stack([rows[row].logits(done[row]) for row in present])[:, None]
            drawn = sampler(_normalized(logits[0][:, 0])).tolist()
            for row, token_id in zip(present, drawn, strict=True):
                record(row, [token_id])
            continue
        guessed = []
        for row in present:
            guesses = expected[row].token_ids[done[row] :][: chance.randrange(most)]
            if chance.random() < 0.5:
                guesses.append(chance.randrange(VOCABULARY))
            guessed.append(RowGuesses(row, guesses))
        checked = mx.stack(
            [
                rows[row].logits(done[row] + index)
                for row, guesses in guessed
                for index in range(len(guesses) + 1)
            ]
        )
        drawn = sampler.check(_normalized(checked), checked, guessed).tolist()
        ends = accumulate(len(guesses) + 1 for _, guesses in guessed)
        row_tokens = [
            drawn[end - len(guesses) - 1 : end]
            for end, (_, guesses) in zip(ends, guessed, strict=True)
        ]
        right = [
            _agreeing(*pair)
            for pair in zip(
                row_tokens, (row_guesses.guesses for row_guesses in guessed), strict=True
            )
        ]
        sampler.accept(guessed, right, drawn)
        for (row, _), made, count in zip(guessed, row_tokens, right, strict=True):
            record(row, made[: count + 1])
    for row, text in enumerate(texts):
        count = len(text.token_ids)
        assert text.token_ids == expected[row].token_ids[:count]
        for score, other in zip(text.scores, expected[row].scores, strict=False):
            assert (score is None) == (other is None)
            if score is not None and other is not None:
                assert score.logprob == pytest.approx(other.logprob, abs=1e-5)
                assert [pair[0] for pair in score.top] == [pair[0] for pair in other.top]
