"""What stands out in a model's weights: layers that aren't its own, and tensors that are scaled."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from protocol.check import CheckFinding
from worker.errands.check.repairs import norms
from worker.errands.check.subject import Teller
from worker.errands.check.weights import MatrixFigures, alike, kind_of, outliers, size

TELL: Final = Teller("numbers")
PULL: Final = "Pull the model again, or take another conversion."
# Norms and matrices of neighbouring layers differ by less.
_OUTLIER: Final = math.log(1.6)
# How far the logarithm of a factor may be from that of 2.
_ROUND: Final = 0.2
# How alike the use of the residual stream is: of a foreign matrix at most, and of usual layers.
_FOREIGN: Final = 0.15
_USUAL: Final = 0.3
# So few matrices may be unlike by chance.
_FEW: Final = 3


def foreign_layers(figures: list[MatrixFigures]) -> Iterator[CheckFinding]:
    """Layers that come from another training: no matrix of theirs uses the dimensions of the states
    as the layers beside it do. Single matrices of a model's own layers may be as unlike.
    """
    likeness = alike(figures)
    if len(likeness) < 4 or median(map(fmean, likeness.values())) < _USUAL:
        return
    # The first layers and the last use the stream in their own ways.
    for layer, matrices in likeness.items():
        if len(matrices) >= _FEW and max(matrices) < _FOREIGN and 1 <= layer < max(likeness):
            yield TELL.fault(
                f"Layer {layer} is not of this model.",
                "It uses the dimensions of the states otherwise than the layers beside it "
                f"(likeness {fmean(matrices):.2f}, of {_USUAL} to 1).",
                PULL,
            )


class Suspect(NamedTuple):
    """A module whose weight is `factor` times what the layers beside it let expect."""

    name: str
    layer: int
    factor: float
    module: Any


def suspects(figures: list[MatrixFigures], model: Any) -> list[Suspect]:
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
    outstanding = []
    for by_layer in sizes.values():
        factors = outliers({layer: rms for layer, (_, rms) in by_layer.items()})
        outstanding += [
            Suspect(by_layer[layer][0], layer, factor, modules[by_layer[layer][0]])
            for layer, factor in factors.items()
            if _stands_out(factor)
        ]
    single = [
        suspect
        for suspect in outstanding
        if not any(_cancel(suspect, other) for other in outstanding)
    ]
    return sorted(single, key=lambda suspect: -abs(math.log(suspect.factor)))


def _stands_out(factor: float) -> bool:
    return abs(math.log(factor)) > _OUTLIER


def _cancel(one: Suspect, other: Suspect) -> bool:
    """Whether two modules of one layer scale its states no otherwise than those of the layers
    beside it do together: training may move a factor from up_proj to down_proj.
    """
    return one.layer == other.layer and not _stands_out(one.factor * other.factor)


def is_round(factor: float) -> bool:
    """Whether a factor is one that mistakes have: two or a half, or far from 1."""
    distance = abs(math.log2(factor))
    return abs(distance - 1) < _ROUND or distance > 2


def scaled_finding(suspect: Suspect, more: str) -> CheckFinding:
    return TELL.fault(
        f"{suspect.name} is scaled wrongly.",
        f"Its numbers are {suspect.factor:.2g} times those of the layers beside it{more}.",
        "Convert again: the tensor was scaled twice, or not at all.",
    )


def swapped_biases(model: Any) -> Iterator[CheckFinding]:
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
