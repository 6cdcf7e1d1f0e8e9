"""Masks over some rows of a batch, and what a row may be beside them. Guesses that are checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest
from llguidance.numpy import allocate_token_bitmask

from protocol.requests import Constraint
from worker.load.loading import LoadedModel
from worker.mlx_lm.guessing import RowGuesses
from worker.sampling.settings import RowSampling
from worker.structure import sampler as sampler_module
from worker.structure.sampler import ConstrainedSampler, SequenceConstraint, Thinking, masked

OBJECT = Constraint(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {"harbour": {"enum": [1, 2]}, "tonnage": {"enum": [1, 2]}},
            "required": ["harbour", "tonnage"],
            "additionalProperties": False,
        }
    ),
)
YES = Constraint("choice", '["yes"]')


def _mask(width: int, *allowed: int) -> np.ndarray:
    mask = allocate_token_bitmask(1, width)
    mask[:] = 0
    for number in allowed:
        mask.view(np.uint32)[0, number // 32] |= np.uint32(1 << number % 32)
    return mask


def _logprobs(rows: int, vocabulary: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    logits = mx.random.normal((rows, vocabulary), key=mx.random.key(1))
    return (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).astype(dtype)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("vocabulary", [40, 64, 100])
def test_masked_log_probabilities(vocabulary: int, dtype: mx.Dtype) -> None:
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


def test_forbidden_tokens_may_come_if_a_constraint_allows_no_other() -> None:
    logprobs = _logprobs(1, 64)
    logprobs[0, 5] = -mx.inf
    logprobs[0, 6] = -mx.inf
    alone = masked(logprobs, [0], _mask(64, 5, 6), [0])[0]
    assert alone[5].item() == alone[6].item() == pytest.approx(math.log(0.5), abs=0.01)
    assert masked(logprobs, [0], _mask(64, 5, 7), [0])[0, 7].item() == pytest.approx(0.0)


def _constrained(
    model: LoadedModel, thinking: Thinking | None = None, constraint: Constraint = YES
) -> SequenceConstraint:
    compiled = model.constraints._compiled
    return SequenceConstraint(compiled.find(constraint), compiled.tokenizer, thinking=thinking)


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
        made = [step[0] for step in _steps(sampler, [{0: number} for number in script], 1)]
        assert made == script
        # Now it counts: what is likely isn't what may be.
        text = model.tokenizer.decode(
            [step[0] for step in _steps(sampler, [{0: inner}] * 3, 1) if step[0] not in eos]
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


def test_a_model_without_reasoning_is_bound_at_once(model: LoadedModel) -> None:
    eos = tuple(model.eos_token_ids)
    sampler = ConstrainedSampler[str](lambda: ["row"])
    sampler.add(
        "row",
        None,
        constrained=_constrained(
            model, Thinking(300, lambda last: last[-1:] == [301], eos, open=False)
        ),
    )
    made = [step[0] for step in _steps(sampler, [{0: 305}, {0: 300}, {0: 300}, {0: 300}], 1)]
    text = model.tokenizer.decode([item for item in made if item not in eos])
    assert text in ("yes", model.tokenizer.decode([300]) + "yes")


def test_rows_come_and_leave(model: LoadedModel) -> None:
    """A row is known by its key, wherever it stands."""
    eos = tuple(model.eos_token_ids)
    order = ["a", "b", "c"]
    sampler = ConstrainedSampler[str](lambda: order)
    sampler.add("a", None)
    sampler.add("b", None, constrained=_constrained(model))
    sampler.add("c", RowSampling(7), constrained=_constrained(model))
    made: dict[str, list[int]] = {name: [] for name in order}
    for step in range(4):
        if step == 1:
            order = ["c", "b"]
            sampler.remove("a")
        logits = mx.zeros((len(order), 704))
        for key, token_id in zip(order, sampler(logits - math.log(704)).tolist(), strict=True):
            made[key].append(token_id)
    for key in ("b", "c"):
        assert made[key][-1] in eos
        assert (
            model.tokenizer.decode([number for number in made[key] if number not in eos]) == "yes"
        )
    assert sampler.remove_broken() == {}


def _flat(rows: int) -> mx.array:
    return mx.full((rows, 704), -math.log(704))


def _one_by_one(
    model: LoadedModel, sampler: ConstrainedSampler[str], row: str
) -> Iterator[tuple[int, list[int]]]:
    """The tokens of a row without guesses, each with those that were forced before it came."""
    for _ in range(100):
        (token_id,) = sampler(_flat(1)).tolist()
        yield token_id, sampler.forced(row)
        if token_id in model.eos_token_ids:
            return


def test_the_keys_of_an_object_are_forced(model: LoadedModel) -> None:
    sampler = ConstrainedSampler[str](lambda: ["row"])
    sampler.add("row", RowSampling(3), constrained=_constrained(model, constraint=OBJECT))
    made = list(_one_by_one(model, sampler, "row"))
    token_ids = [number for number, _ in made]
    for index, (_, forced) in enumerate(made):
        assert token_ids[index : index + len(forced)] == forced
    text = model.tokenizer.decode(token_ids[:-1])
    assert set(json.loads(text)) == {"harbour", "tonnage"}
    assert sum(len(forced) > 1 for _, forced in made) > 3
    assert max(len(forced) for _, forced in made) >= 3


def test_forced_tokens_are_known_while_other_rows_begin(model: LoadedModel) -> None:
    order = ["row"]
    sampler = ConstrainedSampler[str](lambda: order)
    for text in ("row", "other"):
        sampler.add(text, None, constrained=_constrained(model, constraint=OBJECT))
    forced = next(found for _, found in _one_by_one(model, sampler, "row") if len(found) > 1)
    order = ["other"]
    sampler(_flat(1))
    assert sampler.forced("row") == forced


@pytest.mark.parametrize("sampling", [None, RowSampling(3), RowSampling(3, top_p=0.9)])
def test_guesses_are_checked_as_if_they_had_come_one_by_one(
    model: LoadedModel, sampling: RowSampling | None
) -> None:
    """Right, wrong and impossible ones, and some that a schema forces."""
    samplers = [ConstrainedSampler[str](lambda: ["row"]) for _ in range(2)]
    for sampler in samplers:
        sampler.add("row", sampling, constrained=_constrained(model, constraint=OBJECT))
    plain = [token_id for token_id, _ in _one_by_one(model, samplers[0], "row")]
    checked = samplers[1]
    made: list[int] = []
    while len(made) < len(plain):
        left = plain[len(made) :]
        wished = [left[:3], [*left[:2], 701], left[:-1], [701], []][len(made) % 5]
        guesses = checked.possible("row", wished)
        assert guesses == (wished[:-1] if 701 in wished else wished)
        rows = [RowGuesses("row", guesses)]
        logprobs = _flat(len(guesses) + 1)
        drawn = checked.check(logprobs, logprobs, rows).tolist()
        (right,) = checked.accept(drawn)
        made += [*guesses[:right], drawn[right]]
        forced = checked.forced("row")
        assert plain[len(made) - 1 :][: len(forced)] == forced
    assert made == plain
    assert checked.remove_broken() == {}


def test_a_wrong_guess_is_counted_out(model: LoadedModel) -> None:
    """What the constraint allows isn't what is drawn."""
    sampler = ConstrainedSampler[str](lambda: ["row", "other"])
    sampler.add("row", None)
    sampler.add("other", None)
    logits = mx.zeros((5, 704))
    for index, token_id in enumerate([10, 11, 12, 20, 21]):
        logits[index, token_id] = 50.0
    rows = [RowGuesses("row", [10, 9]), RowGuesses("other", [20])]
    assert sampler.possible("row", [10, 9]) == [10, 9]
    drawn = sampler.check(logits, logits, rows).tolist()
    assert drawn == [10, 11, 12, 20, 21]
    assert sampler.accept(drawn) == [1, 1]


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_reasoning_may_be_guessed_up_to_the_end_tag(model: LoadedModel, right: int) -> None:
    """However many guesses are right, the row goes on where it then stands."""
    begin, inner, end = 300, 305, 301
    eos = tuple(model.eos_token_ids)
    guesses = [begin, inner, end]
    sampler = ConstrainedSampler[str](lambda: ["row"])
    thinking = Thinking(begin, lambda last: last[-1:] == [end], eos, open=False)
    sampler.add("row", None, constrained=_constrained(model, thinking))
    # Other texts than the constraint's come in reasoning alone, and no end of the answer there.
    assert sampler.possible("row", [inner]) == []
    assert sampler.possible("row", [begin, eos[0]]) == [begin]
    assert sampler.possible("row", [*guesses, inner]) == guesses
    logits = mx.zeros((4, 704))
    for place, token_id in enumerate([*guesses, inner][:right]):
        logits[place, token_id] = 50.0
    drawn = sampler.check(logits, logits, [RowGuesses("row", guesses)]).tolist()
    assert sampler.accept(drawn) == [right]
    made = [*guesses[:right], drawn[right]]
    if right == 0:
        assert inner not in made
    if 0 < right < 3:
        made += [step[0] for step in _steps(sampler, [{0: inner}, {0: end}], 1)]
        assert made[-2:] == [inner, end]
    made += [step[0] for step in _steps(sampler, [{0: inner}] * 4, 1)]
    answer = made[made.index(end) + 1 :] if right else made
    assert model.tokenizer.decode(answer[: answer.index(eos[0])]) == "yes"


def test_a_row_whose_masks_are_all_too_slow_ends_alone(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = ConstrainedSampler[str](lambda: ["row", "free"])
    sampler.add("row", None, constrained=_constrained(model, constraint=OBJECT))
    sampler.add("free", None)
    guesses = [sampler(_flat(2)).tolist()[0] for _ in range(3)]
    again = ConstrainedSampler[str](lambda: ["row", "free"])
    again.add("row", None, constrained=_constrained(model, constraint=OBJECT))
    again.add("free", None)
    assert again.possible("row", guesses) == guesses
    # After a slow step masks are made one by one.
    monkeypatch.setattr(again, "_one_by_one", True)
    monkeypatch.setattr(sampler_module, "_SLOW_S", -1.0)
    rows = [RowGuesses("row", guesses), RowGuesses("free", [0])]
    drawn = again.check(_flat(6), _flat(6), rows).tolist()
    assert again.accept(drawn) == [3, 1]
    assert list(again.remove_broken()) == ["row"]
