"""The states after some layers of a model, which the layers note in the model's own pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx


class LayerStates:
    """Computes a model's logits, and the states after chosen layers."""

    def __init__(self, model: Any, after: Sequence[int]) -> None:
        """`after` are numbers of layers, from 1 on: the states are those after so many layers.

        Raises:
            ValueError: the model has no such layers.
        """
        self._model = model
        self._after = after
        self._noted: dict[int, mx.array] | None = None
        layers = getattr(model, "layers", ())
        if not all(1 <= number <= len(layers) for number in after):
            raise ValueError(
                f"it wants the states after layers {', '.join(map(str, after))}, and the model has "
                f"{len(layers)} layers"
            )
        for number in set(after):
            self._watch(layers[number - 1], number)

    def __call__(self, tokens: mx.array, cache: list[Any]) -> tuple[mx.array, mx.array]:
        """The logits after each of `tokens`, (rows, tokens), and the tokens' states, (rows, tokens,
        layers x width), side by side in the order of the layers.
        """
        noted: dict[int, mx.array] = {}
        self._noted = noted
        try:
            logits: mx.array = self._model(tokens, cache=cache)
        finally:
            self._noted = None
        return logits, mx.concatenate([noted[number] for number in self._after], axis=-1)

    def _watch(self, layer: Any, number: int) -> None:
        """Have a layer note its states. It stays what it is for the code of its model."""
        states = self

        class WatchedLayer(type(layer)):  # type: ignore[misc]  # The class is known here alone.
            def __call__(self, *arguments: Any, **options: Any) -> Any:
                output = super().__call__(*arguments, **options)
                if states._noted is not None:
                    states._noted[number] = output
                return output

        layer.__class__ = WatchedLayer
