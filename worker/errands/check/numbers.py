"""Are the weights those of a trained model, whole and of one piece? What looks wrong is changed in
memory: a change that makes a plain text likelier names the fault.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from statistics import median
from typing import Any, Final, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from protocol.check import CheckFinding
from protocol.model_files import encoder_of
from protocol.model_folder import weight_files
from worker.errands.check.files import listed
from worker.errands.check.loss import PlainText, TooSlowError
from worker.errands.check.repairs import (
    Repair,
    head_repairs,
    layer_repairs,
    norms,
    position_repairs,
    replaced,
    scaled,
    skipped,
    whole_repairs,
)
from worker.errands.check.subject import Findings, InvalidNumbersError, Subject, Teller
from worker.errands.check.weights import MatrixFigures, alike, kind_of, matrices, outliers, size

TELL: Final = Teller("numbers")
_PULL: Final = "Pull the model again, or take another conversion."
# A repair of the whole model makes the text likelier by so much, in nats a token.
_LEAST_GAIN: Final = 0.05
# A repair of one layer may change less: rounding changes much less.
_LEAST_LAYER_GAIN: Final = 0.01
# Most trained models have less loss on this text: SmolLM2 with 135 million parameters has 2.8.
_USUAL_LOSS: Final = 3.5
_UNUSUAL_LOSS: Final = 4.5
_BROKEN_LOSS: Final = 6.5
# Norms and matrices of neighbouring layers differ by less.
_OUTLIER: Final = math.log(1.6)
# How far the logarithm of a factor may be from that of 2.
_ROUND: Final = 0.2
# How alike the use of the residual stream is: of a foreign layer, and of usual ones.
_FOREIGN: Final = 0.12
_USUAL: Final = 0.3
_MOST_TRIED: Final = 12
# The share of the check's time for repairs.
_REPAIR_SHARE: Final = 0.5


def check_the_numbers(subject: Subject) -> Findings:
    model = subject.loaded.model
    broken = _not_finite(model)
    if broken:
        yield TELL.fault(
            "Weights aren't finite numbers.",
            f"{len(broken)} tensors have NaN or infinity: {listed(broken)}.",
            _PULL,
        )
        raise InvalidNumbersError
    width = int(subject.text_config.get("hidden_size") or 0)
    figures = list(matrices(model, width))
    random = [matrix for matrix in figures if matrix.is_random]
    if random:
        yield _random(random, len(figures))
    if encoder_of(subject.config) is not None or subject.loaded.is_headless:
        yield from _outliers_alone(figures, model)
        return f"{len(figures)} matrices were looked at."
    try:
        search = _Search(subject, figures)
    except TooSlowError:
        yield from _outliers_alone(figures, model)
        return f"{len(figures)} matrices were looked at; this device is too slow for a text."
    if len(random) * 2 < len(figures):
        yield from search.findings()
    if not search.explained and not random:
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
    what = "The weights are random." if share > 0.9 else "A part of the weights is random."
    first = random[0]
    return TELL.fault(
        what,
        f"{len(random)} of {count} matrices, as {first.name}: their rows and columns differ no "
        f"more than random numbers do ({first.spread[0]:.2f} and {first.spread[1]:.2f}; trained "
        "ones have 2 to 30).",
        _PULL,
    )


def _outliers_alone(figures: list[MatrixFigures], model: Any) -> Iterator[CheckFinding]:
    """Findings by figures alone, for a model that gives no probabilities."""
    foreign = _foreign(figures)
    for layer in foreign:
        yield _foreign_finding(layer, foreign[layer], "")
    for suspect in _suspects([], model):
        if suspect.layer not in foreign and _is_round(suspect.factor):
            yield TELL.warning(
                f"{suspect.name} may be scaled wrongly.",
                f"Its numbers are {suspect.factor:.2g} times those of the layers beside it.",
                _PULL,
            )
    yield from _biases(model)


def _foreign(figures: list[MatrixFigures]) -> dict[int, float]:
    likeness = alike(figures)
    if len(likeness) < 4:
        return {}
    usual, last = median(likeness.values()), max(likeness)
    if usual < _USUAL:
        return {}
    # The first layers and the last use the stream in their own ways.
    return {
        layer: value for layer, value in likeness.items() if value < _FOREIGN and 1 <= layer < last
    }


def _foreign_finding(layer: int, likeness: float, more: str) -> CheckFinding:
    return TELL.fault(
        f"Layer {layer} is not of this model.",
        f"It uses the dimensions of the states otherwise than the layers beside it (likeness "
        f"{likeness:.2f}){more}.",
        _PULL,
    )


class _Suspect(NamedTuple):
    """A module whose weight is `factor` times what the layers beside it let expect."""

    name: str
    layer: int
    factor: float
    module: Any


def _suspects(figures: list[MatrixFigures], model: Any) -> list[_Suspect]:
    """The modules that stand out most, first."""
    modules = dict(model.named_modules())
    sizes: dict[str, dict[int, tuple[str, float]]] = defaultdict(dict)
    for matrix in figures:
        if matrix.layer is not None:
            sizes[matrix.kind][matrix.layer] = (matrix.name, matrix.rms)
    for name, module in norms(model).items():
        kind, layer = kind_of(name)
        if layer is not None:
            sizes[kind][layer] = (name, size(module.weight))
    suspects = []
    for by_layer in sizes.values():
        factors = outliers({layer: rms for layer, (_, rms) in by_layer.items()})
        suspects += [
            _Suspect(by_layer[layer][0], layer, factor, modules[by_layer[layer][0]])
            for layer, factor in factors.items()
            if abs(math.log(factor)) > _OUTLIER
        ]
    return sorted(suspects, key=lambda suspect: -abs(math.log(suspect.factor)))


def _is_round(factor: float) -> bool:
    """Whether a factor is one that mistakes have: two or a half, or far from 1."""
    distance = abs(math.log2(factor))
    return abs(distance - 1) < _ROUND or distance > 2


def _scaled_finding(suspect: _Suspect, more: str) -> CheckFinding:
    return TELL.fault(
        f"{suspect.name} is scaled wrongly.",
        f"Its numbers are {suspect.factor:.2g} times those of the layers beside it{more}.",
        "Convert again: the tensor was scaled twice, or not at all.",
    )


def _biases(model: Any) -> Iterator[CheckFinding]:
    """Layers of an encoder whose query and key are swapped. A bias of keys changes nothing in
    attention, so training leaves it small.
    """
    ratios: dict[int, float] = {}
    for name, module in model.named_modules():
        query, key = (getattr(module, part, None) for part in ("query", "key"))
        if query is None or key is None or "bias" not in query or "bias" not in key:
            continue
        _, layer = kind_of(name + ".")
        sizes = [size(part.bias) for part in (query, key)]
        if layer is not None:
            ratios[layer] = math.log((sizes[0] + 1e-12) / (sizes[1] + 1e-12))
    usual = median(ratios.values()) if ratios else 0.0
    for layer, ratio in ratios.items():
        if usual > _OUTLIER and ratio < -usual / 2:
            yield TELL.fault(
                f"query and key of layer {layer} are swapped.",
                f"The bias of its key is {math.exp(-ratio):.0f} times that of its query; in the "
                f"other layers that of the query is {math.exp(usual):.0f} times that of the key.",
                "Swap the two names in the conversion, and convert again.",
            )


class _Search:
    """Looks for the fault of a model that gives probabilities to texts."""

    def __init__(self, subject: Subject, figures: list[MatrixFigures]) -> None:
        self._subject = subject
        self._figures = figures
        self._model = subject.loaded.model
        self._until_s = subject.left_s * (1 - _REPAIR_SHARE)
        tokenizer = subject.tokenizer
        plain = tokenizer.encode("a", add_special_tokens=False)
        whole = tokenizer.encode("a")
        first = whole[0] if len(whole) > len(plain) else None
        self.text = PlainText(
            self._model,
            lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
            first,
            subject.left_s * _REPAIR_SHARE,
        )
        self.explained = False

    def findings(self) -> Iterator[CheckFinding]:
        for finding in self._all():
            self.explained = True
            yield finding

    def _all(self) -> Iterator[CheckFinding]:
        foreign = _foreign(self._figures)
        for layer, likeness in foreign.items():
            without = self._with(skipped(self._model, layer))
            more = f"; without it a token costs {without:.2f} in place of {self.text.base:.2f} nats"
            if without < self.text.base:
                yield _foreign_finding(layer, likeness, more)
        suspects = [s for s in _suspects(self._figures, self._model) if s.layer not in foreign]
        found = False
        for suspect in suspects[:_MOST_TRIED]:
            gain = self._gain(scaled(suspect.module, 1 / suspect.factor))
            if gain > _LEAST_LAYER_GAIN:
                found = True
                yield _scaled_finding(suspect, self._likelier(gain))
        if foreign or found:
            return
        if (repair := self._first_repair()) is not None:
            best, gain = repair
            yield TELL.fault(
                best.what,
                f"Changed so in memory{self._likelier(gain)}.",
                best.remedy,
                best.owner,
            )

    def _first_repair(self) -> tuple[Repair, float] | None:
        """The repair that explains most, and its gain. The cheapest kinds of repairs come first."""
        base = self.text.base
        kinds = [head_repairs(self._model), self._dropped_head(), position_repairs(self._model)]
        if base > _USUAL_LOSS:
            kinds += [self._edge_norms(), self._layers()]
        if base > _UNUSUAL_LOSS:
            kinds.insert(3, whole_repairs(self._model))
        found = (self._best(repairs, _LEAST_GAIN) for repairs in kinds)
        return next((repair for repair in found if repair is not None), None)

    def _likelier(self, gain: float) -> str:
        base = self.text.base
        return f", a plain text costs {base - gain:.2f} in place of {base:.2f} nats a token"

    def _best(self, repairs: Iterator[Repair], least: float) -> tuple[Repair, float] | None:
        """The repair with the largest gain, if that is at least `least`."""
        best: tuple[Repair, float] | None = None
        for repair in repairs:
            if self._subject.left_s < self._until_s:
                break
            gain = self._gain(repair.apply())
            if gain >= least and (best is None or gain > best[1]):
                best = repair, gain
        return best

    def _gain(self, change: AbstractContextManager[None]) -> float:
        """How many nats a token costs less with a change."""
        return self.text.base - self._with(change)

    def _with(self, change: AbstractContextManager[None]) -> float:
        with change:
            loss = self.text.loss()
        return loss if math.isfinite(loss) else math.inf

    def _edge_norms(self) -> Iterator[Repair]:
        """Norms that have no neighbours to be compared with: of the first layers and the last, and
        behind them.
        """
        every = norms(self._model)
        numbers = [layer for name in every if (layer := kind_of(name)[1]) is not None]
        last = max(numbers, default=0)
        for name, module in every.items():
            layer = kind_of(name)[1]
            if layer is None or layer in (0, 1, last):
                for factor in (0.5, 2.0):
                    yield Repair(
                        f"{name} is scaled wrongly.",
                        "Convert again: the tensor was scaled twice, or not at all.",
                        partial(scaled, module, factor),
                    )

    def _layers(self) -> Iterator[Repair]:
        for number, layer in enumerate(self._model.layers):
            yield from layer_repairs(self._model, layer, f"layer {number}")

    def _dropped_head(self) -> Iterator[Repair]:
        """The head of the files, if the load dropped it since config.json ties it."""
        inner = getattr(self._model, "language_model", self._model)
        if hasattr(inner, "lm_head"):
            return
        for path in weight_files(self._subject.folder):
            weights: Any = mx.load(str(path))
            head = weights.get("lm_head.weight")
            if head is not None and mx.issubdtype(head.dtype, mx.floating):
                yield Repair(
                    "The head of the files is left out, and the embeddings stand in for it.",
                    "Set tie_word_embeddings to false in config.json.",
                    partial(_with_head, inner.model.embed_tokens, head),
                )


def _with_head(embedding: Any, head: mx.array) -> AbstractContextManager[None]:
    return replaced(embedding, "as_linear", lambda states: states @ head.T)


def _unusual(loss: float, highest: float, subject: Subject) -> Iterator[CheckFinding]:
    chance = math.log(subject.loaded.vocabulary)
    evidence = f"A plain English text costs {loss:.2f} nats a token, of {chance:.1f} by chance"
    if not math.isfinite(loss) or not math.isfinite(highest):
        yield TELL.fault("The model computes numbers that aren't finite.", f"{evidence}.", _PULL)
    elif loss > _BROKEN_LOSS:
        yield TELL.fault(
            "The weights and the tokenizer, or config.json, don't belong together.",
            f"{evidence}; trained models have 2 to 4. The weights by themselves look trained.",
            "The tokenizer's files, or config.json, are most likely those of another model: copy "
            "both from the original model.",
        )
    elif loss > _UNUSUAL_LOSS:
        yield TELL.warning(
            "The model knows English badly.",
            f"{evidence}; trained models have 2 to 4.",
            "If it is no model of another language or trade, take another conversion.",
            "model",
        )
