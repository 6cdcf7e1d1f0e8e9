"""Whether a model by mlx-vlm computes a text in parts as it computes the text at once.

This server computes prompts in parts, and answers token by token. An answer that goes on after a
break becomes part of a prompt. No name or attribute tells which models mlx-vlm wrote for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Final

import mlx.core as mx

from worker import mlx_vlm
from worker.mlx_lm.caches import leaves_of, make_caches
from worker.system.errors import ModelError, one_sentence, passing_kind

# Longer than a window of 128 tokens, from which some models make one entry. The last part ends
# within such a window, and single tokens follow.
_TEXT: Final = tuple(20 + place * 37 % 79 for place in range(144))
_PARTS: Final = (70, 64, *[1] * 10)
# The fewest of many earlier tokens that an index may choose, so that a short text has too many.
_CHOSEN: Final = 48
# Rounding changes logits by less than this share, even where it chooses another expert.
_LOOSELY: Final = 0.1
# Rounding alone changes them by so many times their number type's precision at most.
_CLOSELY: Final = 8
# Weights of zeros make logits of no length.
_NO_LENGTH: Final = 1e-30
_ADVICE: Final = "Choose another model, or a version of mlx-vlm that is fixed."
_CHANGES: Final = (
    "mlx-vlm's logits of this model depend on where a text is cut into parts, so the same prompt "
    "may get another answer, above all after a break"
)


def why_breaks_change(model: Any) -> str | None:
    """Why answers of a model of texts alone may change at a break, as a phrase; None: they don't.
    Its new caches may be quantized.

    Raises:
        ModelError: the model can't be served.
    """
    try:
        with _short_choices(model):
            whole, parts = _compute(model, (len(_TEXT),)), _compute(model, _PARTS)
    except Exception as error:
        if passing_kind(error) is not None:
            raise
        # Each architecture fails in its own way.
        raise ModelError(
            f"mlx-vlm's code of this model can't compute texts in parts ({one_sentence(error)}), "
            f"which every answer needs. {_ADVICE}"
        ) from error
    if mx.isnan(whole).any():
        raise ModelError(
            f"mlx-vlm's code of this model makes logits that are no numbers. {_ADVICE}"
        )
    seen = _PARTS[0]
    difference = _difference(parts[:seen], whole[:seen])
    if not difference <= _LOOSELY:
        raise ModelError(
            "By mlx-vlm's code of this model the tokens of a text depend on those behind them "
            f"(logits differ by {difference:.0%}), so it can't answer token by token. {_ADVICE}"
        )
    caches = make_caches(model)
    adds_up = mlx_vlm.adds_up_windows(caches)
    difference = _difference(parts[seen:], whole[seen:])
    if not difference <= (_CLOSELY * mx.finfo(whole.dtype).eps if adds_up else _LOOSELY):
        if adds_up:
            return _CHANGES
        raise ModelError(
            "mlx-vlm's code of this model computes a text otherwise in parts than at once (logits "
            f"differ by {difference:.0%}), so its answers can't be relied on. {_ADVICE}"
        )
    return _CHANGES if mlx_vlm.tells_prompts(caches) else None


@contextmanager
def _short_choices(model: Any) -> Iterator[None]:
    """Let the model choose among the tokens of a short text as it does among those of a long one:
    mlx-vlm's hy_v4 fails only there.
    """
    parts = [(part, most) for part, most in model.choices if most > _CHOSEN]
    for part, _ in parts:
        setattr(part, mlx_vlm.CHOICES, _CHOSEN)
    try:
        yield
    finally:
        for part, most in parts:
            setattr(part, mlx_vlm.CHOICES, most)


def _compute(model: Any, sizes: Sequence[int]) -> mx.array:
    """The logits, (tokens, vocabulary), of the text in calls with so many tokens."""
    caches = make_caches(model)
    logits: list[mx.array] = []
    for end, size in zip(accumulate(sizes), sizes, strict=True):
        logits.append(model(mx.array([_TEXT[end - size : end]]), cache=caches)[0])
        mx.eval(logits)
    for leaf in leaves_of(caches):
        # The engines ask for these, and some caches of mlx-vlm lack them.
        _ = leaf.nbytes, leaf.empty()
    return mx.concatenate(logits)


def _difference(logits: mx.array, expected: mx.array) -> float:
    """By which share of their length logits differ, all tokens together."""
    logits, expected = (_centred(array) for array in (logits, expected))
    most = mx.maximum(mx.linalg.norm(expected), _NO_LENGTH)
    return float(mx.linalg.norm(logits - expected) / most)


def _centred(logits: mx.array) -> mx.array:
    logits = logits.astype(mx.float32)
    return logits - logits.mean(axis=-1, keepdims=True)
