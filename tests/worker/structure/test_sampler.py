"""Masks over some rows of a batch, and what a row may be beside them."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from llguidance.numpy import allocate_token_bitmask

from protocol.requests import Constraint
from worker.load.loading import LoadedModel
from worker.sampling.settings import RowSampling
from worker.structure.sampler import Constrained, ConstrainedSampler, Thinking, masked

YES = Constraint("choice", '["yes"]')


def _mask(width: int, *allowed: int) -> np.ndarray:
    mask = allocate_token_bitmask(1, width)
    mask[:] = 0
    for each in allowed:
        mask.view(np.uint32)[0, each // 32] |= np.uint32(1 << each % 32)
    return mask


def _logprobs(rows: int, vocabulary: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    logits = mx.random.normal((rows, vocabulary), key=mx.random.key(1))
    return (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).astype(dtype)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("vocabulary", [40, 64, 100])
def test_what_a_mask_leaves(vocabulary: int, dtype: mx.Dtype) -> None:
    """Also where logits are wider or narrower than the masks."""
    logprobs = _logprobs(3, vocabulary, dtype)
    before = np.array(logprobs.astype(mx.float32))
    allowed = [3, 31, 32, 39]
    result = np.array(masked(logprobs, [1], _mask(64, *allowed, 50), [0]).astype(mx.float32))
    left = [*allowed, 50] if vocabulary > 50 else allowed
    assert np.flatnonzero(np.isfinite(result[1])).tolist() == left
    total = np.exp(before[1, left]).sum()
    assert result[1, left] == pytest.approx(before[1, left] - math.log(total), rel=0.02)
    assert (result[[0, 2]] == before[[0, 2]]).all()
    # mlx-lm gives these out.
    assert (np.array(logprobs.astype(mx.float32)) == before).all()


def test_only_sums_need_a_total() -> None:
    logprobs = _logprobs(2, 64)
    masks = np.concatenate([_mask(64, 3, 7), _mask(64, 3, 7)])
    result = masked(logprobs, [0, 1], masks, [1])
    assert result[0, 3].item() == logprobs[0, 3].item()
    assert mx.exp(result[1]).sum().item() == pytest.approx(1.0, rel=1e-3)


def test_what_other_settings_forbid_may_come_if_nothing_else_may() -> None:
    logprobs = _logprobs(1, 64)
    logprobs[0, 5] = -mx.inf
    logprobs[0, 6] = -mx.inf
    alone = masked(logprobs, [0], _mask(64, 5, 6), [0])[0]
    assert alone[5].item() == alone[6].item() == pytest.approx(math.log(0.5), abs=0.01)
    assert masked(logprobs, [0], _mask(64, 5, 7), [0])[0, 7].item() == pytest.approx(0.0)


def _constrained(model: LoadedModel, thinking: Thinking | None = None) -> Constrained:
    compiled = model.constraints._compiled
    return Constrained(compiled.find(YES), compiled.tokenizer, thinking=thinking)


def _thinking(model: LoadedModel, *, open_: bool) -> Thinking:
    eos = tuple(model.eos_token_ids)
    return Thinking(300, lambda last: last[-1:] == [301], eos, open_)


def _steps(sampler: ConstrainedSampler[str], script: list[dict[int, int]], rows: int) -> list:
    """Each step makes some tokens far more likely than all others, by row."""
    chosen = []
    for likely in script:
        logits = mx.zeros((rows, 704))
        for row, token_id in likely.items():
            logits[row, token_id] = 50.0
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        chosen.append(sampler(logprobs).tolist())
    return chosen


@pytest.mark.parametrize("sampling", [None, RowSampling(1)])
def test_a_row_may_think_first(model: LoadedModel, sampling: RowSampling | None) -> None:
    eos = tuple(model.eos_token_ids)
    begin, inner, end = 300, 301, (302, 303)
    for opened in (False, True):
        sampler = ConstrainedSampler[str](lambda: ["row"])
        thinking = Thinking(begin, lambda last: tuple(last[-2:]) == end, eos, opened)
        sampler.add("row", sampling, constrained=_constrained(model, thinking))
        script = [] if opened else [begin]
        script += [inner, 302, inner, 302, 303]
        made = [each[0] for each in _steps(sampler, [{0: each} for each in script], 1)]
        assert made == script
        # Now it counts: what is likely isn't what may be.
        text = model.tokenizer.decode(
            [each[0] for each in _steps(sampler, [{0: inner}] * 3, 1) if each[0] not in eos]
        )
        assert text == "yes"


def test_reasoning_is_not_the_end_of_an_answer(model: LoadedModel) -> None:
    eos = tuple(model.eos_token_ids)
    sampler = ConstrainedSampler[str](lambda: ["row"])
    sampler.add(
        "row",
        None,
        constrained=_constrained(
            model, Thinking(300, lambda last: last[-1:] == [301], eos, open=True)
        ),
    )
    assert _steps(sampler, [{0: eos[0]}], 1)[0][0] not in eos


def test_one_that_does_not_think_begins_at_once(model: LoadedModel) -> None:
    eos = tuple(model.eos_token_ids)
    sampler = ConstrainedSampler[str](lambda: ["row"])
    sampler.add(
        "row",
        None,
        constrained=_constrained(
            model, Thinking(300, lambda last: last[-1:] == [301], eos, open=False)
        ),
    )
    made = [each[0] for each in _steps(sampler, [{0: 305}, {0: 300}, {0: 300}, {0: 300}], 1)]
    text = model.tokenizer.decode([each for each in made if each not in eos])
    assert text in ("yes", model.tokenizer.decode([300]) + "yes")


def test_rows_come_and_leave(model: LoadedModel) -> None:
    """A row is known by its key, wherever it stands."""
    eos = tuple(model.eos_token_ids)
    order = ["a", "b", "c"]
    sampler = ConstrainedSampler[str](lambda: order)
    sampler.add("a", None)
    sampler.add("b", None, constrained=_constrained(model))
    sampler.add("c", RowSampling(7), constrained=_constrained(model))
    made: dict[str, list[int]] = {each: [] for each in order}
    for step in range(4):
        if step == 1:
            order = ["c", "b"]
            sampler.remove("a")
        logits = mx.zeros((len(order), 704))
        for key, token_id in zip(order, sampler(logits - math.log(704)).tolist(), strict=True):
            made[key].append(token_id)
    for key in ("b", "c"):
        assert made[key][-1] in eos
        assert model.tokenizer.decode([each for each in made[key] if each not in eos]) == "yes"
    assert sampler.take_broken() == {}
