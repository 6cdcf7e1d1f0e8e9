"""Gemma 3's layers in mlx-lm, called as those of an encoder."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gemma3_text import Gemma3Model, ModelArgs

from worker.mlx_lm.models import MASKED, known_weights


def classes() -> tuple[type, Any]:
    """The model, and its arguments."""
    return Model, ModelArgs


class Model(nn.Module):
    """Of vectors: tokens see those before them and those behind."""

    def __init__(self, arguments: Any) -> None:
        super().__init__()
        self.model = Gemma3Model(arguments)
        self._arguments = arguments
        # As in transformers' Gemma3TextConfig: the window is to both sides.
        self._reach = arguments.sliding_window // 2 + 1

    @property
    def dtype(self) -> mx.Dtype:
        dtype: mx.Dtype = self.model.norm.weight.dtype
        return dtype

    def states(self, tokens: mx.array, types: mx.array | None, mask: mx.array) -> mx.array:
        scale = mx.array(self._arguments.hidden_size**0.5, mx.bfloat16)
        states: mx.array = self.model.embed_tokens(tokens)
        states = states * scale.astype(states.dtype)
        places = mx.arange(tokens.shape[1])
        near = mx.abs(places[:, None] - places[None, :]) < self._reach
        known = mx.broadcast_to(mask[:, None, None, :] > 0, (len(mask), 1, *near.shape))
        masks = [mx.where(each, 0, MASKED).astype(states.dtype) for each in (known, known & near)]
        pattern = self._arguments.sliding_window_pattern
        for index, layer in enumerate(self.model.layers):
            states = layer(states, masks[(index + 1) % pattern > 0], None)
        normed: mx.array = self.model.norm(states)
        return normed

    def sanitize(self, weights: dict[str, Any]) -> dict[str, Any]:
        named = {
            name if name.startswith("model.") else f"model.{name}": value
            for name, value in weights.items()
        }
        return known_weights(self, named)
