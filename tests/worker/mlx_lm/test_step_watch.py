"""The watch tells logits that a token may be drawn from, and its result goes with the tokens."""

from __future__ import annotations

import mlx.core as mx
import pytest

from worker.mlx_lm.step_watch import DrawnTokens, are_valid, watch

INF = mx.inf
ROWS = {
    "usual": ([0.5, -2.0, 3.0, 1.0], True),
    "forbidden tokens": ([-INF, -INF, 3.0, -INF], True),
    "one that differs": ([1.0, 1.0, 1.0, 1.5], True),
    "one that isn't a number": ([0.5, mx.nan, 3.0, 1.0], False),
    "the first isn't a number": ([mx.nan, 0.0, 3.0, 1.0], False),
    "infinity": ([0.5, INF, 3.0, 1.0], False),
    "infinity beside no number": ([INF, mx.nan, 0.0, 1.0], False),
    "all forbidden": ([-INF] * 4, False),
    "all zero": ([0.0] * 4, False),
    "all the same": ([2.5] * 4, False),
    "no number at all": ([mx.nan] * 4, False),
}


def _are_valid(logits: mx.array) -> list[bool]:
    _, levels, flat_level = watch(logits)
    return are_valid(levels, flat_level)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("repeated", [1, 40, 5000])
def test_each_row_is_judged_by_itself(dtype: mx.Dtype, repeated: int) -> None:
    rows = [row * repeated for row, _ in ROWS.values()]
    valid = [is_valid for _, is_valid in ROWS.values()]
    assert _are_valid(mx.array(rows, dtype=dtype)) == valid


def test_a_single_number_is_found_anywhere_in_a_large_vocabulary() -> None:
    for place in (0, 1, 31, 32, 127, 70_000, 151_935):
        logits = mx.random.normal((2, 151_936))
        logits[1, place] = mx.nan
        assert _are_valid(logits) == [True, False]


def test_log_probabilities_are_those_of_mlx_lm() -> None:
    logits = mx.random.normal((3, 600))
    expected = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    assert mx.array_equal(watch(logits).logprobs, expected)


def test_levels_go_with_their_tokens() -> None:
    one = DrawnTokens(mx.array([4, 5]), mx.array([-1.0, mx.nan]), -3.0)
    other = DrawnTokens(mx.array([6]), mx.array([-2.0]), -3.0)
    joined = one.join(other).order([1, 2, 0])
    assert joined.tokens.tolist() == [5, 6, 4]
    assert are_valid(joined.levels, joined.flat_level) == [False, True, True]
