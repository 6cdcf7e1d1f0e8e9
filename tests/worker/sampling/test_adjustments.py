"""What requests change of logits is what the definitions say, in one pass for all rows."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.requests import Sampling
from worker.sampling.adjustments import FORBIDDEN, Adjuster, Adjustments, make_adjustments
from worker.sampling.batch import BatchSampler
from worker.sampling.settings import RowSampling

VOCABULARY = 64


def expected(
    adjustments: Adjustments, token_ids: list[int], logits: Sequence[float]
) -> list[float]:
    """By the definitions, one token after the other."""
    made = list(logits)
    answer = token_ids[adjustments.prompt_tokens :]
    if adjustments.repeats:
        for token_id in set(token_ids[-adjustments.repetition_tokens :]):
            penalty = adjustments.repetition_penalty
            made[token_id] = (
                made[token_id] * penalty if made[token_id] < 0 else made[token_id] / penalty
            )
    for index, count in Counter(answer).items():
        made[index] -= adjustments.frequency_penalty * count + adjustments.presence_penalty
    for index, bias in adjustments.logit_bias:
        made[index] += bias
    forbidden = set()
    if adjustments.allowed:
        forbidden |= set(range(VOCABULARY)) - set(adjustments.allowed)
    for phrase in adjustments.banned:
        before = list(phrase[:-1])
        if not before or answer[-len(before) :] == before:
            forbidden.add(phrase[-1])
    if len(answer) < adjustments.min_tokens:
        forbidden |= set(adjustments.ends)
    return [FORBIDDEN if number in forbidden else value for number, value in enumerate(made)]


TOKEN = st.integers(0, VOCABULARY - 1)
PENALTY = st.one_of(st.just(0.0), st.floats(-2, 2, width=32))


@st.composite
def _adjustments(draw: st.DrawFn, prompt_tokens: int) -> Adjustments:
    phrases = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)
    return Adjustments(
        prompt_tokens,
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 0.5, 1.3])),
        repetition_tokens=draw(st.integers(1, 12)),
        frequency_penalty=draw(PENALTY),
        presence_penalty=draw(PENALTY),
        logit_bias=tuple(
            draw(st.dictionaries(TOKEN, st.floats(-100, 100, width=32), max_size=4)).items()
        ),
        allowed=tuple(draw(st.one_of(st.just(set()), st.sets(TOKEN, min_size=1)))),
        banned=tuple(draw(st.lists(phrases, max_size=4))),
        min_tokens=draw(st.integers(0, 6)),
        ends=tuple(draw(st.sets(TOKEN, max_size=2))),
    )


@st.composite
def _rows(draw: st.DrawFn) -> list[tuple[Adjustments, list[int]]]:
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        # Of few tokens, so that some come again and phrases are met.
        prompt = draw(st.lists(st.integers(0, 3), min_size=1, max_size=10))
        answer = draw(st.lists(st.integers(0, 3), max_size=8))
        rows.append((draw(_adjustments(len(prompt))), prompt + answer))
    return rows


@given(_rows(), st.lists(st.integers(0, 3), min_size=5, max_size=5), st.integers(0, 1000))
@settings(max_examples=60)
def test_all_of_them_step_by_step(
    rows: list[tuple[Adjustments, list[int]]], chosen: list[int], seed: int
) -> None:
    """Tokens come one after the other, and in the middle the rows change their company."""
    histories = [adjustments.make_history(mx.array(ids), VOCABULARY) for adjustments, ids in rows]
    token_ids = [list(ids) for _, ids in rows]
    adjuster = Adjuster(histories)
    for step, token in enumerate(chosen):
        if step == 2:
            adjuster.write_back()
            histories.reverse()
            rows, token_ids = rows[::-1], token_ids[::-1]
            adjuster = Adjuster(histories)
        logits = mx.random.normal((len(rows), VOCABULARY), key=mx.random.key(seed + step)) * 5
        before = mx.array(logits)
        adjusted = adjuster.adjust(logits, logits)
        assert mx.array_equal(logits, before)
        for row, (adjustments, _) in enumerate(rows):
            exact = expected(adjustments, token_ids[row], logits[row].tolist())  # type: ignore[arg-type]
            for got, value in zip(adjusted[row].tolist(), exact, strict=True):  # type: ignore[arg-type]
                if value == FORBIDDEN:
                    assert got <= FORBIDDEN / 2  # type: ignore[operator]
                else:
                    assert got == pytest.approx(value, abs=1e-3)
        # Each row another one.
        tokens = [(token + row) % 4 for row in range(len(rows))]
        adjuster.record(mx.array(tokens, dtype=mx.uint32))
        for row, adjustments in enumerate(tokens):
            token_ids[row].append(adjustments)


ROWS: list[tuple[RowSampling | None, Adjustments | None]] = [
    (None, None),
    (RowSampling(1, 0.9), None),
    (None, Adjustments(3, frequency_penalty=0.7, presence_penalty=0.3)),
    (RowSampling(2, 1.2, top_p=0.9), Adjustments(3, repetition_penalty=1.3, repetition_tokens=5)),
    (RowSampling(3, 0.8, top_k=5), Adjustments(3, logit_bias=((4, 3.0), (9, -50.0)))),
    (None, Adjustments(3, banned=((7,), (4, 5), (5, 4, 5)), allowed=(4, 5, 6, 7))),
    (RowSampling(4, 1.0, min_p=0.02), Adjustments(3, min_tokens=3, ends=(0, 1))),
    (RowSampling(5, 1.0, xtc_probability=0.5, xtc_spared=(3,)), None),
    (
        RowSampling(6, 1.5),
        Adjustments(
            3,
            repetition_penalty=0.9,
            repetition_tokens=20,
            frequency_penalty=-0.5,
            logit_bias=((2, 1.0),),
            banned=((2, 2, 3),),
        ),
    ),
]
PROMPT = [4, 5, 4]


def _draw_alone(row: int, steps: Sequence[tuple[mx.array, mx.array]]) -> list[int]:
    sampling, adjustments = ROWS[row]
    current: list[mx.array] = []
    sampler = BatchSampler[int](lambda: (0,), lambda: current[0][:, None])
    sampler.add(0, sampling, adjustments, PROMPT)
    drawn = []
    for logits, logprobs in steps:
        current[:] = [logits[row : row + 1]]
        drawn.append(int(sampler(logprobs[row : row + 1]).item()))
    return drawn


def _steps(kind: mx.Dtype, count: int = 8) -> list[tuple[mx.array, mx.array]]:
    """Logits, and log probabilities as mlx-lm makes them."""
    made = []
    for step in range(count):
        logits = mx.random.normal((len(ROWS), VOCABULARY), key=mx.random.key(step)) * 3
        logits = logits.astype(kind)
        made.append((logits, logits - mx.logsumexp(logits, axis=-1, keepdims=True)))
    return made


@pytest.mark.parametrize("kind", [mx.float32, mx.bfloat16])
def test_a_row_is_the_same_whoever_shares_its_batch(kind: mx.Dtype) -> None:
    steps = _steps(kind)
    alone = [_draw_alone(row, steps) for row in range(len(ROWS))]
    chance = random.Random(1)
    present = list(range(len(ROWS)))
    current: list[mx.array] = []
    together = BatchSampler[int](lambda: present, lambda: current[0][:, None])
    for row, (sampling, adjustments) in enumerate(ROWS):
        together.add(row, sampling, adjustments, PROMPT)
    for number, (logits, logprobs) in enumerate(steps):
        if number == 3:
            for gone in chance.sample(present, 3):
                present.remove(gone)
                together.remove(gone)
        chance.shuffle(present)
        rows = mx.array(present)
        current[:] = [logits[rows]]
        tokens = together(logprobs[rows]).tolist()
        for row, token in zip(present, tokens, strict=True):  # type: ignore[arg-type]
            assert token == alone[row][number], (row, number)


def test_a_row_that_goes_on_elsewhere() -> None:
    steps = _steps(mx.float32)
    for row, (sampling, adjustments) in enumerate(ROWS):
        whole = _draw_alone(row, steps)
        for cut in (1, 3, 7):
            rest = None if sampling is None else sampling.again_after(cut)
            current: list[mx.array] = []
            sampler = BatchSampler[int](lambda: (0,), lambda current=current: current[0][:, None])  # type: ignore[misc]
            sampler.add(0, rest, adjustments, PROMPT + whole[:cut])
            drawn = []
            for logits, logprobs in steps[cut:]:
                current[:] = [logits[row : row + 1]]
                drawn.append(sampler(logprobs[row : row + 1]).item())
            assert drawn == whole[cut:], (row, cut)


def test_penalized_tokens_are_not_repeated() -> None:
    """With a bias for two tokens and a penalty for what came, they take turns."""
    sampler = BatchSampler[int](lambda: (0,))
    sampler.add(0, None, Adjustments(0, frequency_penalty=1.0, logit_bias=((3, 5.5), (8, 5.0))))
    flat = mx.full((1, VOCABULARY), -math.log(VOCABULARY))
    assert [sampler(flat).item() for _ in range(6)] == [3, 8, 3, 8, 3, 8]


def test_a_constraint_has_its_way() -> None:
    """It masks what is given to the sampler; what a request forbids weighs less."""
    sampler = BatchSampler[int](lambda: (0,))
    sampler.add(0, None, Adjustments(0, banned=((5,),), allowed=(1, 2), min_tokens=9, ends=(5,)))
    masked = mx.full((1, VOCABULARY), -6e4)
    masked[0, 5] = -3.0
    assert sampler(masked).item() == 5


def test_requests_that_change_nothing() -> None:
    assert make_adjustments(Sampling(seed=1), 3, 10, (0,)) is None
    assert make_adjustments(Sampling(seed=1, min_tokens=4), 3, 10, ()) is None
    assert make_adjustments(Sampling(seed=1, repetition_penalty=1.0), 3, 10, (0,)) is None
    made = make_adjustments(
        Sampling(seed=1, repetition_penalty=1.1, repetition_context_tokens=2**31 - 1), 3, 10, ()
    )
    assert made is not None
    assert made.repetition_tokens == 10


@pytest.mark.parametrize("bounded", [False, True])
def test_xtc_leaves_out_all_likely_tokens_but_one(*, bounded: bool) -> None:
    """Of those that a filter leaves; those that it spares stay; and only at its chance."""
    probabilities = [0.4, 0.3, 0.15, 0.1, 0.05]
    logprobs = mx.log(mx.array([probabilities]))
    drawn = Counter[int]()
    for seed in range(2000):
        sampling = RowSampling(
            seed,
            1.0,
            top_k=3 if bounded else 0,
            xtc_probability=0.5,
            xtc_threshold=0.12,
            xtc_spared=(1,) if bounded else (),
        )
        sampler = BatchSampler[int](lambda: (0,))
        sampler.add(0, sampling)
        drawn[int(sampler(logprobs).item())] += 1
    if bounded:
        # Of 0.85; half the time the second and third alone.
        exact = [0.5 * 0.4 / 0.85, 0.5 * (0.3 / 0.85 + 0.3 / 0.45)]
        exact += [0.5 * (0.15 / 0.85 + 0.15 / 0.45), 0.0, 0.0]
    else:
        # Half the time only what is no likelier than the third is left, of 0.3.
        exact = [0.5 * p + 0.5 * (p / 0.3 if p < 0.2 else 0.0) for p in probabilities]
    for token, probability in enumerate(exact):
        spread = math.sqrt(max(probability * (1 - probability), 1e-9) / 2000)
        assert abs(drawn[token] / 2000 - probability) <= 4 * spread + 1e-9, token


def test_xtc_where_only_one_is_likely() -> None:
    logprobs = mx.log(mx.array([[0.9, 0.06, 0.04]]))
    tokens = Counter[int]()
    for seed in range(200):
        sampler = BatchSampler[int](lambda: (0,))
        sampler.add(0, RowSampling(seed, 1.0, xtc_probability=1.0))
        tokens[int(sampler(logprobs).item())] += 1
    assert tokens[0] > 150
