"""Are the weights those of a trained model, whole and of one piece?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_flatten

from protocol.check import CheckFinding
from protocol.encoders import encoder_of
from worker.errands.check.files import listed
from worker.errands.check.loss import TooSlowError
from worker.errands.check.search import UNUSUAL_LOSS, USUAL_LOSS, Search
from worker.errands.check.subject import (
    Findings,
    InvalidNumbersError,
    SectionSkipped,
    Subject,
    Teller,
    UncheckedError,
)
from worker.errands.check.suspects import (
    PULL,
    foreign_layers,
    is_round,
    suspects,
    swapped_biases,
)
from worker.errands.check.weights import MatrixFigures, matrices

TELL: Final = Teller("numbers")
_BROKEN_LOSS: Final = 6.5
_OTHERWISE: Final = "If it is no model of another language or trade, take another conversion."
# Weights are random as a whole if more matrices than this share are.
_WHOLE: Final = 0.9
# The rows of a narrower model differ little, and such a model knows too little to be judged by a
# text that it wasn't trained with.
_LEAST_WIDTH: Final = 256


def check_the_numbers(subject: Subject) -> Findings:
    model = subject.loaded.model
    broken = _not_finite(model)
    if broken:
        yield TELL.fault(
            "Weights aren't finite numbers.",
            f"{len(broken)} tensors have NaN or infinity: {listed(broken)}.",
            PULL,
        )
        raise InvalidNumbersError
    if subject.loaded.is_by_mlx_vlm:
        raise SectionSkipped("mlx-vlm computes the model, whose layers have other names there.")
    width = int(subject.text_config.get("hidden_size") or 0)
    figures = list(matrices(model, width))
    random = [matrix for matrix in figures if matrix.is_random]
    is_narrow = 0 < width < _LEAST_WIDTH
    if random and (not is_narrow or len(random) > _WHOLE * len(figures)):
        yield _random(random, len(figures))
    if encoder_of(subject.config) is not None or subject.loaded.is_headless:
        yield from _outliers_alone(figures, model)
        return f"{len(figures)} matrices were looked at."
    try:
        search = Search(subject, figures)
    except TooSlowError:
        yield from _outliers_alone(figures, model)
        raise UncheckedError(
            f"{len(figures)} matrices were looked at; the time was too short for a text."
        ) from None
    if not is_narrow and all(matrix.layer is None for matrix in random):
        yield from search.findings()
    if not search.explained and not random and not is_narrow:
        yield from _unusual(search.text.base, search.text.highest, subject)
    return (
        f"{len(figures)} matrices; a plain text costs {search.text.base:.2f} nats a token, of "
        f"{math.log(subject.loaded.vocabulary):.1f} by chance."
    )


def _not_finite(model: Any) -> list[str]:
    broken = []
    for name, array in tree_flatten(model.parameters()):
        if mx.issubdtype(array.dtype, mx.floating) and not mx.isfinite(array).all().item():
            broken.append(name)
    return broken


def _random(random: list[MatrixFigures], count: int) -> CheckFinding:
    share = len(random) / count
    what = "The weights are random." if share > _WHOLE else "A part of the weights is random."
    first = random[0]
    return TELL.fault(
        what,
        f"{len(random)} of {count} matrices, as {first.name}: their rows and columns differ no "
        f"more than random numbers do ({first.spread[0]:.2f} and {first.spread[1]:.2f}; trained "
        "ones have 2 to 30).",
        PULL,
    )


def _outliers_alone(figures: list[MatrixFigures], model: Any) -> Iterator[CheckFinding]:
    """Findings by figures alone, for a model that gives no probabilities."""
    yield from foreign_layers(figures)
    for suspect in suspects([], model):
        if is_round(suspect.factor):
            yield TELL.warning(
                f"{suspect.name} may be scaled wrongly.",
                f"Its numbers are {suspect.factor:.2g} times those of the layers beside it.",
                PULL,
            )
    yield from swapped_biases(model)


def _unusual(loss: float, highest: float, subject: Subject) -> Iterator[CheckFinding]:
    chance = math.log(subject.loaded.vocabulary)
    evidence = f"A plain English text costs {loss:.2f} nats a token, of {chance:.1f} by chance"
    if not math.isfinite(loss) or not math.isfinite(highest):
        yield TELL.fault("The model computes numbers that aren't finite.", f"{evidence}.", PULL)
    elif loss > _BROKEN_LOSS:
        yield TELL.fault(
            "The weights and the tokenizer, or config.json, don't belong together.",
            f"{evidence}; trained models have 2 to 4. The weights by themselves look trained.",
            "The tokenizer's files, or config.json, are most likely those of another model: copy "
            "both from the original model.",
        )
    elif loss > UNUSUAL_LOSS:
        yield TELL.warning(
            "The model knows English badly.",
            f"{evidence}; trained models have 2 to 4.",
            _OTHERWISE,
            "model",
        )
    elif loss > USUAL_LOSS:
        yield TELL.remark(
            "The model finds a plain English text less likely than most models do.",
            f"{evidence}; most trained models have 2 to {USUAL_LOSS}. Swapped layers can be the "
            "cause.",
            _OTHERWISE,
        )
