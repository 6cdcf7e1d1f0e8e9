"""Bytes that one sequence's cache takes, from config.json.

The sizes follow from the code of mlx-lm's models (`make_cache` and `update_and_fetch`). A layer
caches keys and values of every token or of a window, a compressed latent, or a state of fixed size.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import ceil
from typing import Any, Final

import msgspec
from msgspec import Struct

from protocol.life import CACHE_STEP_TOKENS, STATE_TOKENS, peak_share

_LATENT: Final = {
    "num_attention_heads": 32,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
DEFAULTS: Final[dict[str, dict[str, int]]] = {
    "afmoe": {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64},
    "cohere2": {
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT,
    "gemma3_text": {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
    },
    "glm4_moe_lite": {
        "num_attention_heads": 20,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
    },
    "gpt_oss": {
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
    },
    "mixtral": {"num_attention_heads": 32, "num_key_value_heads": 8},
}
# The defaults of the model that contains the language model, from mlx-lm's gemma3.ModelArgs.
_AROUND: Final = {"gemma3": {"num_attention_heads": 8, "num_key_value_heads": 4}}


def language_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the language model, with mlx-lm's defaults, whether config.json nests them in
    text_config or not.
    """
    nested = config.get("text_config")
    nested = nested if isinstance(nested, dict) else {}
    merged = {**config, **nested}
    defaults = DEFAULTS.get(str(merged.get("model_type")), {})
    around = _AROUND.get(str(config.get("model_type")), {}) if nested else {}
    return {**defaults, **around, **{k: v for k, v in merged.items() if v is not None}}


_MOST_LAYERS: Final = 10_000
# mlx-lm's QuantizedKVCache gives so many numbers one scale and one bias, which are not quantized.
_QUANTIZED_GROUP: Final = 64
# States are summed up in single precision.
_STATE_ELEMENT_BYTES: Final = 4


class Layer(StrEnum):
    FULL = "keeps all tokens"
    WINDOW = "keeps a window"
    STATE = "keeps a state"
    BOTH = "keeps all tokens and a state"
    NONE = "keeps nothing"


class Recurrence(Struct, frozen=True):
    """The sizes of a layer that keeps a state: the number of heads, the width of all heads
    together, the channels of the convolution before the heads, and the elements of the state.
    """

    heads: int
    inner: int
    channels: int
    elements: int


class SequenceCache(Struct, frozen=True):
    """The bytes of a sequence's cache: for each token, for each of `window_tokens` at most, and for
    the states, whatever the length. `layers` counts the layers that keep something. With
    `in_chunks` windows grow by whole steps.
    """

    full_token_bytes: int
    window_token_bytes: int
    window_tokens: int
    state_bytes: int
    layers: int = 1
    in_chunks: bool = False

    def times(self, factor: float, layers: int) -> SequenceCache:
        """The same cache with `factor` times the bytes, in at most `layers` layers."""
        return msgspec.structs.replace(
            self,
            full_token_bytes=ceil(self.full_token_bytes * factor),
            window_token_bytes=ceil(self.window_token_bytes * factor),
            state_bytes=ceil(self.state_bytes * factor),
            layers=max(1, min(layers, self.layers)),
        )

    def peak_bytes(self, rows: int, tokens: int) -> int:
        """The most bytes of a batch while it grows, with `rows` sequences of `tokens` tokens."""
        return int(rows * self.sequence_bytes(tokens) * peak_share(self.layers))

    def sequence_bytes(self, tokens: int) -> int:
        """Bytes of a sequence of so many tokens."""
        steps = -(-tokens // CACHE_STEP_TOKENS)
        # A window without chunks begins with the length of the prompt, and then grows by a step.
        grown_tokens = steps * CACHE_STEP_TOKENS if self.in_chunks else tokens + CACHE_STEP_TOKENS
        windowed = min(grown_tokens, self.window_tokens)
        return (
            steps * CACHE_STEP_TOKENS * self.full_token_bytes
            + windowed * self.window_token_bytes
            + self.state_bytes
        )


_BY_NAME: Final = {
    "full_attention": Layer.FULL,
    "attention": Layer.FULL,
    "global_attention": Layer.FULL,
    "sliding_attention": Layer.WINDOW,
    "local_attention": Layer.WINDOW,
    "chunked_attention": Layer.WINDOW,
    "linear_attention": Layer.STATE,
    "mamba": Layer.STATE,
    "recurrent": Layer.STATE,
    "conv": Layer.STATE,
}
# nemotron_h's letters.
_BY_LETTER: Final = {"M": Layer.STATE, "*": Layer.FULL, "-": Layer.NONE, "E": Layer.NONE}
_ONLY_STATES: Final = ("mamba", "mamba2", "rwkv7", "falcon_mamba")
# These models cache keys and values themselves, although they compute them from a latent.
DECOMPRESSED: Final = ("deepseek_v2", "minicpm3")
_CHUNKED: Final = ("llama4", "llama4_text")
_WINDOW_NAMES: Final = (
    "sliding_window",
    "attention_chunk_size",
    "sliding_window_size",
    "attention_window_size",
    "window_size",
)


def cache_shape(
    config: Mapping[str, Any], element_bytes: int, kv_bits: int | None = None
) -> SequenceCache:
    """The shape of a model's caches. A layer of an unknown kind counts as one that keeps all
    tokens. With `kv_bits` the caches of layers that keep all tokens are quantized; mlx-lm quantizes
    no others.

    Raises:
        TypeError, ValueError: the configuration makes no sense.
    """
    text = language_of(config)
    layers = layers_of(text)
    kept = [each for each in layers if each in (Layer.FULL, Layer.BOTH)]
    windowed = [each for each in layers if each is Layer.WINDOW]
    states = [each for each in layers if each in (Layer.STATE, Layer.BOTH)]
    token_bytes = token_bytes_of(text, element_bytes)
    return SequenceCache(
        full_token_bytes=len(kept) * _quantized_bytes(token_bytes, element_bytes, kv_bits),
        window_token_bytes=len(windowed) * token_bytes,
        window_tokens=window_of(text) if windowed else 0,
        state_bytes=len(states) * _state_bytes(text, element_bytes),
        layers=max(1, sum(each is not Layer.NONE for each in layers)),
        in_chunks=text.get("model_type") in _CHUNKED,
    )


def head_shape(config: Mapping[str, Any], element_bytes: int) -> SequenceCache:
    """The shape of the cache of a model's own head, with the model's states for it.

    Raises:
        TypeError, ValueError: the configuration makes no sense.
    """
    text = language_of(config)
    return SequenceCache(
        full_token_bytes=token_bytes_of(text, element_bytes),
        window_token_bytes=0,
        window_tokens=0,
        state_bytes=STATE_TOKENS * first(text, "hidden_size") * element_bytes,
    )


def _quantized_bytes(plain_bytes: int, element_bytes: int, kv_bits: int | None) -> int:
    if kv_bits is None:
        return plain_bytes
    groups = plain_bytes / element_bytes / _QUANTIZED_GROUP
    return ceil(groups * (_QUANTIZED_GROUP * kv_bits / 8 + 2 * element_bytes))


def window_of(config: Mapping[str, Any]) -> int:
    """The most tokens that a layer with a window keeps."""
    window = first(config, *_WINDOW_NAMES)
    # A window in chunks grows by a step before it is cut back.
    return window + CACHE_STEP_TOKENS if config.get("model_type") in _CHUNKED else window


def layers_of(config: Mapping[str, Any]) -> list[Layer]:
    """The kind of each layer, by the configuration of the language model."""
    count = first(config, "num_hidden_layers", "n_layers", "n_layer", "num_layers")
    if count > _MOST_LAYERS:
        raise ValueError(f"it has {count:,} layers")
    layers = _named_layers(config, count)
    shared = first(config, "num_kv_shared_layers")
    return [*layers[: count - shared], *([Layer.NONE] * shared)] if shared < count else layers


def _named_layers(config: Mapping[str, Any], count: int) -> list[Layer]:
    kind = config.get("model_type")
    if kind in _ONLY_STATES:
        return [Layer.STATE] * count
    if kind == "falcon_h1":
        return [Layer.BOTH] * count
    if kind in _CHUNKED:
        # mlx-lm's own rule, whatever the file's layer types say.
        return [Layer.WINDOW if (index + 1) % 4 else Layer.FULL for index in range(count)]
    if isinstance(letters := config.get("hybrid_override_pattern"), str):
        return [_BY_LETTER.get(each, Layer.FULL) for each in letters]
    for name in ("layer_types", "layers_block_type", "block_types"):
        if isinstance(names := config.get(name), list) and names:
            return [_BY_NAME.get(names[index % len(names)], Layer.FULL) for index in range(count)]
    if isinstance(indices := config.get("full_attn_idxs"), list):
        return [Layer.FULL if index in indices else Layer.STATE for index in range(count)]
    if interval := first(config, "full_attention_interval"):
        return [Layer.STATE if (i + 1) % interval else Layer.FULL for i in range(count)]
    if period := first(config, "attn_layer_period"):
        offset = first(config, "attn_layer_offset")
        return [Layer.FULL if i % period == offset else Layer.STATE for i in range(count)]
    if pattern := first(config, "sliding_window_pattern"):
        return [Layer.WINDOW if (i + 1) % pattern else Layer.FULL for i in range(count)]
    return [Layer.FULL] * count


def token_bytes_of(config: Mapping[str, Any], element_bytes: int) -> int:
    """Bytes that a token takes in the cache of one layer of attention."""
    heads = first(config, "num_attention_heads", "n_heads", "n_head")
    rope = first(config, "qk_rope_head_dim")
    if rank := first(config, "kv_lora_rank"):
        if config.get("model_type") not in DECOMPRESSED:
            return (rank + rope) * element_bytes
        key = first(config, "qk_nope_head_dim") + rope
        return heads * (key + (first(config, "v_head_dim") or key)) * element_bytes
    hidden = first(config, "hidden_size", "d_model", "n_embd", "dim")
    key = first(config, "head_dim") or (hidden // heads if heads else 0)
    value = first(config, "v_head_dim") or key
    groups = first(config, "num_key_value_heads", "num_kv_heads", "n_kv_heads") or heads
    return groups * (key + value) * element_bytes


def recurrence_of(config: Mapping[str, Any]) -> Recurrence:
    """The sizes of the layers that keep a state."""
    if value_heads := first(config, "linear_num_value_heads"):
        key_size = first(config, "linear_key_head_dim")
        inner = value_heads * first(config, "linear_value_head_dim")
        keys = first(config, "linear_num_key_heads") * key_size
        return Recurrence(value_heads, inner, 2 * keys + inner, inner * key_size)
    size = first(config, "state_size", "ssm_state_size", "mamba_d_state", "d_state")
    heads = first(config, "num_heads", "mamba_num_heads", "mamba_n_heads")
    inner = heads * first(config, "head_dim", "mamba_head_dim", "mamba_d_head")
    inner = inner or first(config, "intermediate_size", "d_inner", "lru_width")
    groups = first(config, "n_groups", "mamba_n_groups") or 1
    return Recurrence(heads, inner, inner + 2 * groups * size, inner * size)


def _state_bytes(config: Mapping[str, Any], element_bytes: int) -> int:
    """Bytes of one layer's state: of the convolution, and of the recurrence behind it."""
    kernel = first(config, "conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim", "d_conv")
    recurrence = recurrence_of(config)
    convolution = max(kernel - 1, 0) * recurrence.channels * element_bytes
    return convolution + recurrence.elements * _STATE_ELEMENT_BYTES


def first(config: Mapping[str, Any], *names: str) -> int:
    """The value of the first of these keys that has a positive whole number; 0 if no key has."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0
