"""Encoders made of mlx-vlm's layers.

mlx-vlm's own calls pool by a rule of each architecture. This file takes the states of the tokens,
and the model's files decide on the pooling. Parts that look at pictures, or listen, are left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from protocol.encoders import LFM2_CAUSAL, architectures_of, encoder_of
from protocol.extras import command_to_add
from protocol.model_files import text_table
from worker.mlx_lm.models import MASKED, known_weights

# LFM2 for masked words has this before the names of its weights.
_OUTER: Final = "lfm2."
# A layer behind LFM2 that some conversions keep among the weights.
_INNER_DENSE: Final = "dense.weight"


class UnfitEncoderError(Exception):
    """mlx-vlm's layers can't compute an encoder. The text is a sentence that says why."""


def classes_of(config: dict[str, Any]) -> tuple[type, Any]:
    """The classes of an encoder and of its arguments, as mlx-lm's `load_model` wants them.

    Raises:
        UnfitEncoderError: mlx-vlm can't be imported, or its layers don't fit.
    """
    name = str(encoder_of(config))
    try:
        module = importlib.import_module(f"mlx_vlm.models.{name}")
    except ImportError as error:
        raise UnfitEncoderError(
            f"Encoders of type {config.get('model_type')} need mlx-vlm, which can't be imported "
            f"({error}). This installs it: {command_to_add('vision')}"
        ) from error
    return _BUILDERS[name](module, config)


def _encoder(module: Any) -> type:
    """An encoder of a module whose model gives the states beside its own vectors."""

    class VlmEncoder(module.Model):  # type: ignore[misc]  # mlx-vlm is untyped
        @property
        def dtype(self) -> mx.Dtype:
            arrays = tree_flatten(self.layers[0].parameters())
            norm: mx.array = next(array for name, array in arrays if "norm" in name)
            return norm.dtype

        def states(
            self, tokens: mx.array, types: mx.array | None, seen: mx.array, there: mx.array
        ) -> mx.array:
            # MLX computes no vectors here, since nobody asks for their values.
            output = super().__call__(tokens, attention_mask=seen)
            return cast(mx.array, output.last_hidden_state)

        def sanitize(self, weights: dict[str, Any]) -> dict[str, Any]:
            return known_weights(self, super().sanitize(weights))

    return VlmEncoder


class _Fixed:
    """The arguments of a model, where mlx-lm expects a class that makes them of config.json."""

    def __init__(self, arguments: Any) -> None:
        self._arguments = arguments

    def from_dict(self, _config: dict[str, Any]) -> Any:
        return self._arguments


def _llama(module: Any, config: dict[str, Any]) -> tuple[type, Any]:
    text = {**config, **text_table(config)}
    # mlx-vlm reads the older names of these settings alone.
    ropes = text.get("rope_parameters") or {}
    if "rope_theta" in ropes:
        text.setdefault("rope_theta", ropes["rope_theta"])
    if ropes.get("rope_type", "default") != "default":
        text["rope_scaling"] = text.get("rope_scaling") or ropes
    return _encoder(module), _Fixed(module.ModelConfig.from_dict(text))


def _ministral(module: Any, _config: dict[str, Any]) -> tuple[type, Any]:
    return _encoder(module), module.ModelConfig


def _gemma(module: Any, config: dict[str, Any]) -> tuple[type, Any]:
    alone = {**config, "vision_config": None, "audio_config": None}
    return _encoder(module), _Fixed(module.ModelConfig.from_dict(alone))


def _lfm2(module: Any, config: dict[str, Any]) -> tuple[type, Any]:
    causal = LFM2_CAUSAL in architectures_of(config)

    class Lfm2Encoder(_encoder(module)):  # type: ignore[misc]  # mlx-vlm is untyped
        def __init__(self, arguments: Any) -> None:
            super().__init__(arguments)
            for layer in self.layers:
                if not layer.is_attention_layer:
                    layer.conv.causal = causal

        def states(
            self, tokens: mx.array, types: mx.array | None, seen: mx.array, there: mx.array
        ) -> mx.array:
            keys = seen[:, None, None, :] > 0
            if causal:
                places = mx.arange(tokens.shape[1])
                keys = keys & (places[:, None] >= places[None, :])
            attention = mx.where(keys, 0, MASKED).astype(self.dtype)
            # The encoders were trained with convolutions over tokens that no attention sees.
            convolved = seen if causal else there
            states = self.model.embed_tokens(tokens)
            for layer in self.layers:
                if layer.is_attention_layer:
                    states = layer(states, attention, None)
                    continue
                normed = layer.operator_norm(states) * convolved[..., None]
                states = states + layer.conv(normed, convolved > 0)
                states = states + layer.feed_forward(layer.ffn_norm(states))
            return cast(mx.array, self.model.embedding_norm(states))

        def sanitize(self, weights: dict[str, Any]) -> dict[str, Any]:
            if _INNER_DENSE in weights:
                raise UnfitEncoderError(
                    f"The weights contain the layer behind the model ({_INNER_DENSE}): take a "
                    "conversion that has it in a folder of its own (1_Dense)."
                )
            named = {name.removeprefix(_OUTER): array for name, array in weights.items()}
            return cast(dict[str, Any], super().sanitize(named))

    # Newer files leave out this width, which is always the same.
    whole = {"block_dim": config.get("hidden_size"), **config}
    return Lfm2Encoder, _Fixed(module.ModelConfig.from_dict(whole))


_BUILDERS: Final[dict[str, Callable[[Any, dict[str, Any]], tuple[type, Any]]]] = {
    "embedding_gemma2": _gemma,
    "lfm2_embedding": _lfm2,
    "llama_bidirec": _llama,
    "ministral3_embedding": _ministral,
}
