"""Encoders made of mlx-embeddings' layers, with a head for scores if the files have one.

mlx-embeddings' own model calls pool all models in the same way, and need weights that some files
lack. This file calls only the layers, and the model's files decide on pooling and heads.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final, cast

import mlx.core as mx
import mlx.nn as nn

from protocol.encoders import ENCODERS, encoder_of
from protocol.extras import command_to_add
from protocol.model_files import text_table
from worker.mlx_lm.models import MASKED, known_weights

_SCORING: Final = "ForSequenceClassification"


class EncoderError(Exception):
    """An encoder can't be loaded. The text is a sentence that says why."""


def classes_of(config: dict[str, Any]) -> tuple[type, Any]:
    """The classes of an encoder and of its arguments, as mlx-lm's `load_model` wants them.

    Raises:
        EncoderError: the architecture is unknown, or mlx-embeddings can't be imported.
    """
    name = encoder_of(config)
    kind = config.get("model_type")
    if not name:
        known = ", ".join(key for key, module in ENCODERS.items() if module)
        raise EncoderError(f"Encoders of type {kind} are not supported; there are {known}.")
    if name == "gemma3_text":
        # mlx-embeddings has Gemma 3's layers too, but without their sliding windows.
        from worker.mlx_lm.models import gemma3_encoder

        return gemma3_encoder()
    try:
        module = importlib.import_module(f"mlx_embeddings.models.{name}")
    except ImportError as error:
        raise EncoderError(
            f"Encoders such as this one, of type {kind}, need mlx-embeddings, which can't be "
            f"imported ({error}). This installs it: {command_to_add('embeddings')}"
        ) from error
    return _BUILDERS[name](module, config)


def scores(config: Mapping[str, Any]) -> bool:
    """Whether the model gives scores to pairs of texts, instead of making vectors."""
    return any(
        str(architecture).endswith(_SCORING) for architecture in config.get("architectures") or ()
    )


def context_tokens_of(config: Mapping[str, Any]) -> int | None:
    """The most tokens of a text; None if the configuration doesn't say. RoBERTa's first position
    is `pad_token_id` + 1, so a text has so many positions fewer.
    """
    value = {**config, **text_table(config)}.get("max_position_embeddings")
    if not isinstance(value, int) or value <= 0:
        return None
    if encoder_of(config) == "xlm_roberta":
        return value - int(config.get("pad_token_id", 1)) - 1
    return value


def _labels(config: Mapping[str, Any]) -> int:
    labels = len(config.get("id2label") or {}) or int(config.get("num_labels", 2))
    if labels != 1:
        raise EncoderError(f"This model has {labels} labels; one that scores texts has one.")
    return labels


def _unprefixed(weights: dict[str, Any], *prefixes: str) -> dict[str, Any]:
    """The weights by their names without these prefixes, as in a model without a head."""
    named = {}
    for name, value in weights.items():
        prefix = next(
            (known_prefix for known_prefix in prefixes if name.startswith(known_prefix)), ""
        )
        named[name.removeprefix(prefix)] = value
    return named


class _Bert(nn.Module):
    """BERT or RoBERTa. With `scoring` the model has a head for scores: BERT's if `pooled_head`,
    else RoBERTa's.
    """

    def __init__(self, trunk: nn.Module, *, scoring: bool, pooled_head: bool) -> None:
        super().__init__()
        width = trunk.config.hidden_size
        self.embeddings = trunk.embeddings
        self.encoder = trunk.encoder
        self._pooled_head = pooled_head
        if not scoring:
            return
        if pooled_head:
            self.pooler = {"dense": nn.Linear(width, width)}
            self.classifier = nn.Linear(width, 1)
        else:
            self.classifier = {"dense": nn.Linear(width, width), "out_proj": nn.Linear(width, 1)}

    @property
    def dtype(self) -> mx.Dtype:
        dtype: mx.Dtype = self.embeddings.LayerNorm.weight.dtype
        return dtype

    def states(
        self, tokens: mx.array, types: mx.array | None, seen: mx.array, there: mx.array
    ) -> mx.array:
        below = self.embeddings(tokens, types)
        states = self.encoder(below, (1.0 - seen[:, None, None, :]) * MASKED)
        states = states[0] if isinstance(states, tuple) else states
        return cast(mx.array, states)

    def logits(self, first: mx.array) -> mx.array:
        """One logit for each text, from the states of the texts' first tokens."""
        if self._pooled_head:
            logits = self.classifier(mx.tanh(self.pooler["dense"](first)))
        else:
            logits = self.classifier["out_proj"](mx.tanh(self.classifier["dense"](first)))
        return cast(mx.array, logits)

    def sanitize(self, weights: dict[str, Any]) -> dict[str, Any]:
        return known_weights(self, _unprefixed(weights, "bert.", "roberta."))


def _bert(module: Any, config: dict[str, Any]) -> tuple[type, Any]:
    scoring = scores(config)
    if scoring:
        _labels(config)
    if config.get("hidden_act", "gelu") != "gelu":
        raise EncoderError(f"mlx-embeddings has no {config['hidden_act']} in its BERT.")
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise EncoderError("mlx-embeddings has no relative positions in its BERT.")
    roberta = encoder_of(config) == "xlm_roberta"

    class BertEncoder(_Bert):
        def __init__(self, arguments: Any) -> None:
            super().__init__(module.Model(arguments), scoring=scoring, pooled_head=not roberta)

    return BertEncoder, module.ModelArgs


def _modernbert(module: Any, config: dict[str, Any]) -> tuple[type, Any]:
    scoring = scores(config)
    if scoring:
        _labels(config)
    pooling = config.get("classifier_pooling", "cls")
    # Newer configurations have the bases of RoPE in nested tables.
    ropes = config.get("rope_parameters") or {}
    for key, name in (("full_attention", "global"), ("sliding_attention", "local")):
        if theta := (ropes.get(key) or {}).get("rope_theta"):
            config.setdefault(f"{name}_rope_theta", theta)

    class Trunk(module.ModernBertModel):
        def __init__(self, arguments: Any) -> None:
            super().__init__(arguments)
            for layer in self.layers:
                # mlx-embeddings takes an approximation of GELU.
                layer.mlp.act = nn.GELU()

        def _update_attention_mask(self, attention_mask: mx.array) -> tuple[mx.array, ...]:
            # In half precision the masks of mlx-embeddings are infinite, and padded rows NaN.
            masks = super()._update_attention_mask(attention_mask.astype(mx.float32))
            return tuple(mx.maximum(mask, MASKED).astype(attention_mask.dtype) for mask in masks)

    class ModernBertEncoder(nn.Module):
        def __init__(self, arguments: Any) -> None:
            super().__init__()
            self.model = Trunk(arguments)
            self.scored_pooling = pooling
            if scoring:
                self.head = module.ModernBertPredictionHead(arguments)
                self.head.act = nn.GELU()
                self.classifier = nn.Linear(arguments.hidden_size, 1)

        @property
        def dtype(self) -> mx.Dtype:
            dtype: mx.Dtype = self.model.final_norm.weight.dtype
            return dtype

        def states(
            self, tokens: mx.array, types: mx.array | None, seen: mx.array, there: mx.array
        ) -> mx.array:
            states: mx.array = self.model(tokens, attention_mask=seen)["last_hidden_state"]
            return states

        def logits(self, pooled: mx.array) -> mx.array:
            return cast(mx.array, self.classifier(self.head(pooled)))

        def sanitize(self, weights: dict[str, Any]) -> dict[str, Any]:
            ours = ("model.", "head.", "classifier.")
            named = {
                name if name.startswith(ours) else f"model.{name}": value
                for name, value in weights.items()
            }
            return known_weights(self, named)

    return ModernBertEncoder, module.ModelArgs


_BUILDERS: Final = {
    "bert": _bert,
    "xlm_roberta": _bert,
    "modernbert": _modernbert,
}
