"""EAGLE-3: a drafter of one layer that was trained for one model (arXiv 2503.01840).

The states that the model computed for a token after three of its layers are joined into one. The
drafter's layer gets that, and the embedding of the token that follows. The layer's attention reads
both, side by side after their norms. From its state come logits of the token after that, for the
part of the vocabulary that the drafter knows. A chain of guesses goes on with the layer's states.

Attention and MLP are those of mlx-lm's Llama. mlx-vlm's module of EAGLE-3 has its own positions and
caches inside, which rows that come and go can't use, and knows one of the two forms of files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache

from worker.mlx_lm.caches import make_caches
from worker.mlx_lm.layer_states import LayerStates

# The number of layers whose states are joined.
_STATES: Final = 3
_IDS: Final = "eagle_aux_hidden_state_layer_ids"
# Of the training alone: the way back from the model's tokens, and copies of the model's weights.
_SPARE: Final = ("t2d", "verifier_", "midlayer.self_attn.rotary_emb.")


class Eagle3Layer(nn.Module):
    """A layer of Llama whose attention reads embeddings and states."""

    def __init__(self, arguments: llama.ModelArgs, *, norm_before_residual: bool) -> None:
        super().__init__()
        width, epsilon = arguments.hidden_size, arguments.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(width, epsilon)
        self.hidden_norm = nn.RMSNorm(width, epsilon)
        self.post_attention_layernorm = nn.RMSNorm(width, epsilon)
        self.self_attn = llama.Attention(arguments)
        for name in ("q_proj", "k_proj", "v_proj"):
            made = self.self_attn[name].weight.shape[0]
            self.self_attn[name] = nn.Linear(2 * width, made, bias=arguments.attention_bias)
        self.mlp = llama.MLP(arguments)
        self._norm_before_residual = norm_before_residual

    def __call__(self, embedded: mx.array, states: mx.array, cache: Any) -> mx.array:
        normed = self.hidden_norm(states)
        both = mx.concatenate([self.input_layernorm(embedded), normed], axis=-1)
        mask = create_attention_mask(both, cache)
        states = normed if self._norm_before_residual else states
        states = states + self.self_attn(both, mask, cache)
        made: mx.array = states + self.mlp(self.post_attention_layernorm(states))
        return made


class Eagle3(nn.Module):
    """The drafter's weights. `vocabulary` is the number of the model's tokens."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, mx.array]) -> None:
        """Take the weights of a folder, by their names in the files.

        Raises:
            ValueError, TypeError: they don't belong to the configuration, or the drafter has parts
                that aren't known here.
        """
        super().__init__()
        text = {**config, **(config.get("transformer_layer_config") or {})}
        rope = {**(text.get("rope_scaling") or {}), **(text.get("rope_parameters") or {})}
        text["rope_theta"] = rope.pop("rope_theta", text.get("rope_theta"))
        text["rope_scaling"] = rope or None
        arguments = llama.ModelArgs.from_dict(
            {name: item for name, item in text.items() if item is not None}
        )
        if text.get("hidden_act", "silu") != "silu":
            raise ValueError(f"its hidden_act is {text['hidden_act']}, and silu alone is known")
        self.vocabulary = arguments.vocab_size
        self._layers = _layers_in(config)
        named = {name.removeprefix("model."): item for name, item in weights.items()}
        named = {name.replace("layers.0.", "midlayer.", 1): item for name, item in named.items()}
        named = {name: item for name, item in named.items() if not name.startswith(_SPARE)}
        width = arguments.hidden_size
        known = config.get("draft_vocab_size") or self.vocabulary
        self.fc = nn.Linear(
            _STATES * (config.get("target_hidden_size") or width), width, bias="fc.bias" in named
        )
        self.midlayer = Eagle3Layer(
            arguments, norm_before_residual=bool(config.get("norm_before_residual"))
        )
        self.norm = nn.RMSNorm(width, arguments.rms_norm_eps)
        self.lm_head = nn.Linear(width, known, bias=False)
        if "d2t" in named or known < self.vocabulary:
            # How far each of the drafter's tokens is from the model's token.
            self.d2t = mx.zeros((known,), mx.int32)
        if "embed_tokens.weight" in named:
            self.embed_tokens = nn.Embedding(self.vocabulary, width)
        self.load_weights(list(named.items()))

    def layers_of(self, model: Any) -> list[int]:
        """The layers of the model after which the drafter gets the states, from 1 on."""
        count = len(getattr(model, "layers", ()))
        return self._layers or [2, count // 2, count - 3]


def _layers_in(config: Mapping[str, Any]) -> list[int] | None:
    if config.get(_IDS):
        return list(config[_IDS])
    # Here a layer counts by its own number, from 0 on, and not by the layers before its input, as
    # in SGLang's `set_eagle3_layers_to_capture`.
    inner = (config.get("eagle_config") or {}).get(_IDS)
    return [number + 1 for number in inner] if inner else None


class Eagle3Drafter:
    """Guesses tokens by EAGLE-3, as a `Drafter`."""

    def __init__(self, eagle: Eagle3, model: Any, tokens: int) -> None:
        """At most `tokens` tokens are guessed at a time, for the model.

        Raises:
            ValueError: the drafter was made for another model. The text says what doesn't fit.
        """
        self._eagle = eagle
        self._states = LayerStates(model, eagle.layers_of(model))
        trunk = getattr(getattr(model, "language_model", model), "model", None)
        self._embedding = eagle.get("embed_tokens", getattr(trunk, "embed_tokens", None))
        self._tokens = mx.arange(eagle.d2t.size) + eagle.d2t if "d2t" in eagle else None
        self._check(model)
        # Right guesses are seen again.
        self.usual_tokens = tokens + 1

    def make_cache(self) -> list[Any]:
        """New caches for one row."""
        return [KVCache()]

    @property
    def state_bytes(self) -> int:
        """The bytes of a token's states."""
        return int(self._eagle.fc.weight.shape[1] * self._dtype.size)

    @property
    def _dtype(self) -> mx.Dtype:
        dtype: mx.Dtype = self._eagle.norm.weight.dtype
        return dtype

    def _check(self, model: Any) -> None:
        eagle = self._eagle
        try:
            # Only shapes are asked for, so nothing is computed.
            logits, states = self._states(mx.array([[0, 0]]), make_caches(model))
        except Exception as error:
            # Some layers give more than their states.
            raise ValueError("the model's layers don't give their states") from error
        if logits.shape[-1] != eagle.vocabulary:
            raise ValueError(
                f"it is for {eagle.vocabulary:,} tokens, and the model has {logits.shape[-1]:,}"
            )
        if states.shape != (1, 2, eagle.fc.weight.shape[1]):
            raise ValueError("it is for states of another shape than the model's")
        if self._embedding is None or (
            self._embedding(mx.array([0])).shape[-1] != eagle.norm.weight.size
        ):
            raise ValueError("its files have no embedding, and the model's doesn't fit")
        if self._tokens is None:
            return
        known = (self._tokens >= 0) & (self._tokens < eagle.vocabulary)
        if not known.all():
            raise ValueError("its table d2t names tokens that the model doesn't have")

    def with_states(self, tokens: mx.array, cache: list[Any]) -> tuple[mx.array, mx.array]:
        """The model's logits after each of `tokens`, (rows, tokens), and the tokens' joined states,
        which are computed if they are used.
        """
        logits, states = self._states(tokens, cache)
        return logits, self._eagle.fc(states.astype(self._dtype))

    def __call__(
        self, tokens: mx.array, hidden: mx.array | None, cache: list[Any]
    ) -> tuple[mx.array, mx.array]:
        """The logits of the token after each of `tokens`, (rows, tokens, vocabulary), and the
        layer's states. `hidden` are the states, (rows, tokens, width), of the token before each;
        None: zeros, for a trial.
        """
        embedded = self._embedding(tokens).astype(self._dtype)
        states = mx.zeros_like(embedded) if hidden is None else hidden
        states = self._eagle.midlayer(embedded, states, cache[0])
        logits = self._eagle.lm_head(self._eagle.norm(states))
        if self._tokens is not None:
            known = logits
            logits = mx.full((*tokens.shape, self._eagle.vocabulary), -mx.inf, known.dtype)
            logits[..., self._tokens] = known
        return logits, states
