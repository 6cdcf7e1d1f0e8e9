"""Looks for the fault of a model that gives probabilities to texts: it changes the model in memory,
and a change that makes a plain text likelier names the fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from typing import Any, Final

import mlx.core as mx

from protocol.check import CheckFinding
from protocol.model_folder import weight_files
from worker.errands.check.loss import PlainText
from worker.errands.check.repairs import (
    Repair,
    head_repairs,
    layer_repairs,
    norms,
    position_repairs,
    replaced,
    scaled,
    whole_repairs,
)
from worker.errands.check.subject import Subject, Teller
from worker.errands.check.suspects import (
    foreign_layers,
    scaled_finding,
    suspects,
)
from worker.errands.check.weights import MatrixFigures, kind_of

TELL: Final = Teller("numbers")
# Most trained models have less loss on this text: SmolLM2 with 135 million parameters has 2.8.
_USUAL_LOSS: Final = 3.5
UNUSUAL_LOSS: Final = 4.5
# A repair of the whole model makes the text likelier by so much, in nats a token.
_LEAST_GAIN: Final = 0.05
# Of what a token costs above the usual, the right repair takes so much away, and this much ends the
# search.
_LEAST_SHARE: Final = 0.3
_ENOUGH: Final = 0.9
# A repaired model knows the text at least so well, as a share of what a token costs by chance.
_KNOWN: Final = 0.85
# A repair of one layer may change less: rounding changes much less.
_LEAST_LAYER_GAIN: Final = 0.01
_MOST_TRIED: Final = 12
# The share of the check's time for repairs.
_REPAIR_SHARE: Final = 0.5


class Search:
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
        found = False
        for finding in foreign_layers(self._figures):
            found = True
            yield finding
        for suspect in suspects(self._figures, self._model)[:_MOST_TRIED]:
            gain = self._gain(scaled(suspect.module, 1 / suspect.factor))
            if gain > _LEAST_LAYER_GAIN:
                found = True
                yield scaled_finding(suspect, self._likelier(gain))
        if found:
            return
        if (repair := self._best_repair()) is not None:
            best, gain = repair
            yield TELL.fault(
                best.what,
                f"Changed so in memory{self._likelier(gain)}.",
                best.remedy,
                best.owner,
            )

    def _best_repair(self) -> tuple[Repair, float] | None:
        """The repair that explains most, and its gain. The likeliest repairs come first."""
        base = self.text.base
        kinds = [head_repairs(self._model), self._dropped_head(), position_repairs(self._model)]
        if base > UNUSUAL_LOSS:
            kinds.append(whole_repairs(self._model))
        if base > _USUAL_LOSS:
            kinds += [self._edge_norms(), self._layers()]
        return self._best(chain.from_iterable(kinds))

    def _likelier(self, gain: float) -> str:
        base = self.text.base
        return f", a plain text costs {base - gain:.2f} in place of {base:.2f} nats a token"

    def _best(self, repairs: Iterator[Repair]) -> tuple[Repair, float] | None:
        """The repair with the largest gain, if it is large enough: a change of a broken model may
        gain a little by chance.
        """
        above = max(0.0, self.text.base - _USUAL_LOSS)
        known = _KNOWN * math.log(self._subject.loaded.vocabulary)
        least = max(_LEAST_GAIN + _LEAST_SHARE * above, self.text.base - known)
        enough = above * _ENOUGH
        best: tuple[Repair, float] | None = None
        for repair in repairs:
            if self._subject.left_s < self._until_s:
                break
            gain = self._gain(repair.apply())
            if gain >= least and (best is None or gain > best[1]):
                best = repair, gain
                if above and gain > enough:
                    break
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
