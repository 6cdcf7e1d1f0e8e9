"""The trial at a load: whether a model's rows can be computed together, and in several groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import mlx.core as mx

from worker.mlx_lm.caches import can_be_merged, in_small_steps, leaves_of, make_caches
from worker.mlx_lm.row_caches import RowsCache, rows_caches
from worker.mlx_lm.row_groups import RowGroup, caches_of_step

# Attention over other padding differs by rounding. Attention over wrong keys differs by more.
_NEARLY: Final = 0.05
# Logits of a row beside another may differ by this share from those of the row alone, and by so
# many times the precision of their number type.
_LEAST_ROUNDING: Final = 1e-3
_ROUNDING: Final = 2
# Kernels for two rows may round otherwise than those for one: what they change of a row beside its
# own copy, times this, they may change beside another row.
_NOISE: Final = 4
# Rounding can choose another expert for a token, but hardly so in all of several tries.
_TRIES: Final = 3


class BatchingTrial(NamedTuple):
    """What the trial shows: whether a model's rows can be computed together. `fault` is a phrase
    that says why they can't. `groups`: they may be in several groups.
    """

    fault: str | None
    groups: bool = False


def try_batching(model: Any) -> BatchingTrial:
    """Try two rows of unlike lengths, together and each alone.

    Some architectures were written for one sequence. No attribute tells which: some take the length
    of the longest row for that of all, as mlx-lm's afm7, and some fail.
    """
    if not can_be_merged(make_caches(model)):
        return BatchingTrial("the caches of this model can't be merged")
    try:
        for first in range(1, 1 + _TRIES):
            rows = _computed(model, ([first, 2], [first, 2, 3, 4, 5]))
            if _is_same_alone(model, rows):
                return BatchingTrial(None, _takes_groups(model, rows))
    except Exception as error:
        if type(error) in (RuntimeError, MemoryError):
            raise  # Of MLX and its GPU, not of the architecture.
        reason = " ".join(str(error).split()) or type(error).__name__
        return BatchingTrial(f"this model can't compute several together ({reason})")
    return BatchingTrial("this model answers otherwise when several are computed together")


def _is_same_alone(model: Any, rows: Sequence[list[Any]]) -> bool:
    """Whether each of two rows has nearly the same logits beside the other as alone. The rows go on
    by one or two tokens.
    """
    beside = _beside(model, rows, [6, 7])
    alone = [_next(model, rows[0], 6), _next(model, rows[1], 7)]
    # First, since a spare may still compile the kernels of rows beside each other for a GPU.
    mx.eval(alone)
    difference = _difference(beside, alone)
    if difference <= max(_LEAST_ROUNDING, _ROUNDING * mx.finfo(beside.dtype).eps):
        return True
    copies = mx.concatenate([_beside(model, [row, row], [8, 8])[:1] for row in rows])
    return difference <= _NOISE * _difference(copies, [_next(model, row, 8) for row in rows])


def _computed(model: Any, prompts: Sequence[list[int]]) -> list[list[Any]]:
    """The caches of each prompt, computed alone."""
    rows = [in_small_steps(make_caches(model)) for _ in prompts]
    for caches, tokens in zip(rows, prompts, strict=True):
        mx.eval(model(mx.array([tokens]), cache=caches))
    return rows


def _next(model: Any, caches: list[Any], token: int) -> mx.array:
    """The logits, (1, vocabulary), after another token of a row alone."""
    # Drawn tokens have this type, too, for which a GPU has kernels of its own.
    logits: mx.array = model(mx.array([[token]], mx.uint32), cache=caches)[:, -1]
    return logits


def _beside(model: Any, rows: Sequence[list[Any]], tokens: list[int]) -> mx.array:
    """The logits, (rows, vocabulary), after another token of each row, computed together. The rows'
    own caches stay as they are.
    """
    group = RowGroup(_merged(rows), len(rows))
    logits: mx.array = model(mx.array(tokens)[:, None], cache=caches_of_step([group], 1))[:, -1]
    return logits


def _difference(logits: mx.array, alone: Sequence[mx.array]) -> float:
    """By which share of the largest logit the logits of a row differ at most."""
    expected = mx.concatenate(list(alone)).astype(mx.float32)
    most = mx.abs(logits.astype(mx.float32) - expected).max(axis=-1)
    return float((most / mx.abs(expected).max(axis=-1)).max())


def takes_groups(model: Any) -> bool:
    """Whether a model's rows may be in several groups. Some architectures compute attention
    themselves, or look at masks. Only a try tells.
    """
    if not can_be_merged(make_caches(model)):
        return False
    return _takes_groups(model, _computed(model, ([1, 2], [1, 2, 3, 4, 5])))


def _takes_groups(model: Any, rows: Sequence[list[Any]]) -> bool:
    try:
        together, other = (RowGroup(_merged(rows), len(rows)) for _ in range(2))
        shared = [leaf for leaf in leaves_of(other.caches) if not isinstance(leaf, RowsCache)]
        apart = [other.part([row], iter(shared)) for row in range(len(rows))]
        return bool(together.leaves) and all(
            _is_same(model, [together], apart, mx.array(tokens))
            for tokens in ([[6], [7]], [[8, 9], [10, 11]])
        )
    except (AttributeError, TypeError, ValueError):
        return False


def _merged(rows: Sequence[Sequence[Any]]) -> list[Any]:
    merged = [type(caches[0]).merge(list(caches)) for caches in zip(*rows, strict=True)]
    return in_small_steps(rows_caches(merged))


def _is_same(
    model: Any, together: Sequence[RowGroup], apart: Sequence[RowGroup], tokens: mx.array
) -> bool:
    """Whether both groupings of the same rows give nearly the same logits for `tokens`, shape
    (rows, tokens).
    """
    width = tokens.shape[1]
    computed, expected = (
        model(tokens, cache=caches_of_step(groups, width)).astype(mx.float32)
        for groups in (apart, together)
    )
    for group in (*together, *apart):
        group.advance([width] * len(group))
    return bool(mx.abs(computed - expected).max() <= _NEARLY * mx.abs(expected).max())
