"""Bytes that one sequence's cache takes, from config.json.

The sizes follow from the code of mlx-lm's models (`make_cache` and `update_and_fetch`). A layer
caches keys and values of every token or of a window, a compressed latent, or a state of fixed size.
The rules go by keys, so that they hold for architectures that aren't known yet. In doubt a cache is
too large here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final

import msgspec
from msgspec import Struct

from gateway.memory.defaults import DEFAULTS
from gateway.memory.layers import (
    CHUNKED,
    Layer,
    at_layer,
    first,
    heads_of,
    layers_of,
    listed,
    settings_of,
    width_of,
    window_of,
)
from protocol.life import CACHE_STEP_TOKENS, STATE_TOKENS, peak_share
from protocol.model_files import DrafterKind, drafter_kind, text_table

# Tables with settings of attention: of dbrx, of kimi_linear, and of minimax_m3_vl.
_OF_ATTENTION: Final = ("attn_config", "linear_attn_config", "sparse_attention_config")
# The defaults of the model that contains the language model, from mlx-lm's gemma3.ModelArgs.
_AROUND: Final = {"gemma3": {"num_attention_heads": 8, "num_key_value_heads": 4}}


def language_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the language model, with mlx-lm's defaults, whether config.json nests them in
    a table or not.
    """
    nested = text_table(config)
    merged = {**config, **nested}
    for name in _OF_ATTENTION:
        if isinstance(table := merged.get(name), dict):
            merged |= table
    if config.get("model_type") in CHUNKED:
        merged["model_type"] = config["model_type"]
    outer = DEFAULTS.get(str(config.get("model_type")), {})
    defaults = DEFAULTS.get(str(merged.get("model_type")), outer)
    around = _AROUND.get(str(config.get("model_type")), {}) if nested else {}
    return {**defaults, **around, **{k: v for k, v in merged.items() if v is not None}}


# mlx-lm's QuantizedKVCache gives so many numbers one scale and one bias, which are not quantized.
_QUANTIZED_GROUP: Final = 64
_COMPRESSED_BYTES: Final = 4


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


# These models cache keys and values themselves, although they compute them from a latent.
DECOMPRESSED: Final = ("deepseek_v2", "minicpm3", "youtu_llm")
# The caches of a layer.
_SEVERAL: Final = {"longcat_flash": 2, "longcat_flash_ngram": 2}


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
    if ratios := listed(text, "compress_ratios"):
        return _compressed(text, element_bytes, ratios)
    several = _SEVERAL.get(str(text.get("model_type"))) or first(text, "num_loops") or 1
    full_bytes = _token_bytes(text, element_bytes, (Layer.FULL, Layer.BOTH))
    window_bytes = window_token_bytes_of(text, element_bytes)
    caching = sum(layer is not Layer.NONE for layer in layers)
    if first(text, "loop_window_size"):
        # The second loop caches a window beside the tokens of the first.
        window_bytes, several = full_bytes, 1
        caching *= 2
    states = sum(layer in (Layer.STATE, Layer.BOTH) for layer in layers)
    return SequenceCache(
        full_token_bytes=several * _quantized_bytes(full_bytes, element_bytes, kv_bits),
        window_token_bytes=several * window_bytes,
        window_tokens=window_of(text) if window_bytes else 0,
        state_bytes=states * state_bytes_of(text, element_bytes) if states else 0,
        layers=max(1, several * caching),
        in_chunks=text.get("model_type") in CHUNKED,
    )


def drafter_shape(config: Mapping[str, Any], element_bytes: int) -> SequenceCache:
    """The shape of the cache of a drafter that works only beside its model, by its config.json.
    Raises as `head_shape`.
    """
    if drafter_kind(config) is not DrafterKind.EAGLE3:
        return head_shape(config, element_bytes)
    # The states are those after three layers of the model.
    width = 3 * (config.get("target_hidden_size") or language_of(config)["hidden_size"])
    return head_shape(config, element_bytes, width)


def head_shape(
    config: Mapping[str, Any], element_bytes: int, state_width: int | None = None
) -> SequenceCache:
    """The shape of the cache of a model's own head, with the model's states for it.

    Raises:
        TypeError, ValueError: the configuration makes no sense.
    """
    text = language_of(config)
    width = state_width or first(text, "hidden_size")
    return SequenceCache(
        full_token_bytes=token_bytes_of(settings_of(text, Layer.FULL), element_bytes),
        window_token_bytes=0,
        window_tokens=0,
        state_bytes=STATE_TOKENS * width * element_bytes,
    )


def _quantized_bytes(plain_bytes: int, element_bytes: int, kv_bits: int | None) -> int:
    if kv_bits is None:
        return plain_bytes
    groups = plain_bytes / element_bytes / _QUANTIZED_GROUP
    return ceil(groups * (_QUANTIZED_GROUP * kv_bits / 8 + 2 * element_bytes))


def window_token_bytes_of(config: Mapping[str, Any], element_bytes: int) -> int:
    """Bytes that a token takes in the caches of all layers with a window."""
    return _token_bytes(config, element_bytes, (Layer.WINDOW,))


def _token_bytes(config: Mapping[str, Any], element_bytes: int, kinds: tuple[Layer, ...]) -> int:
    layers = layers_of(config)
    return sum(
        token_bytes_of(at_layer(settings, index), element_bytes)
        for kind in kinds
        if kind in layers and (settings := settings_of(config, kind))
        for index, layer in enumerate(layers)
        if layer is kind
    )


def token_bytes_of(settings: Mapping[str, Any], element_bytes: int) -> int:
    """Bytes that a token takes in the cache of one layer of attention, by the layer's settings."""
    heads = heads_of(settings)
    width = width_of(settings) // heads if heads else 0
    rope = first(settings, "qk_rope_head_dim")
    index = _index_size(settings)
    if rank := first(settings, "kv_lora_rank"):
        if settings.get("model_type") not in DECOMPRESSED:
            return (rank + rope + index) * element_bytes
        key = first(settings, "qk_nope_head_dim") + rope
        return heads * (key + (first(settings, "v_head_dim") or width)) * element_bytes
    key = first(settings, "head_dim", "kv_channels", "hidden_size_per_head") or width
    value = first(settings, "v_head_dim") or key
    return (_groups(settings, heads) * (key + value) + index) * element_bytes


def _groups(settings: Mapping[str, Any], heads: int) -> int:
    """The number of heads of keys."""
    if settings.get("multi_query"):
        return 1
    if shared := first(settings, "n_shared_head"):
        return -(-heads // shared)
    names = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_n_heads")
    return first(settings, *names, "num_attention_groups") or heads


def _index_size(settings: Mapping[str, Any]) -> int:
    """The elements that an indexer keeps of a token. Beside a latent mlx-lm keeps its keys twice,
    the second time as values.
    """
    if first(settings, "kv_lora_rank"):
        return 2 * first(settings, "index_head_dim")
    attends_to_all = settings.get("layer_types") == "full_attention"
    if attends_to_all or settings.get("sparse_attention_freq") == 0:
        return 0
    return first(settings, "sparse_index_dim", "index_head_dim")


def _compressed(
    config: Mapping[str, Any], element_bytes: int, ratios: Sequence[Any]
) -> SequenceCache:
    """The shape of caches that keep a window, and one entry for so many older tokens as the layer's
    ratio is. Some layers have entries of their own, and some of these an index over them.
    """
    count = len(layers_of(config))
    keys, index = first(config, "head_dim"), first(config, "index_head_dim")
    sources, indexed = (
        frozenset(listed(config, name) or range(count))
        for name in ("kv_source_layer_ids", "index_source_layer_ids")
    )
    elements = sum(
        (keys + index * (layer in indexed)) / ratio
        for layer, ratio in enumerate(ratios[:count])
        if ratio > 0 and layer in sources
    )
    return SequenceCache(
        # Compressed entries are in single precision.
        full_token_bytes=ceil(elements * _COMPRESSED_BYTES),
        window_token_bytes=count * keys * element_bytes,
        window_tokens=window_of(config),
        state_bytes=0,
        layers=max(1, count),
    )


# Most states are summed up in single precision.
_SINGLE_BYTES: Final = 4
_KERNEL_NAMES: Final = (
    "conv_kernel",
    "mamba_d_conv",
    "linear_conv_kernel_dim",
    "d_conv",
    "short_conv_kernel_size",
    "conv_L_cache",
    "conv1d_width",
)
_USUAL_KERNEL: Final = 4


class Recurrence(Struct, frozen=True):
    """The sizes of a layer that keeps a state: the number of heads, the width of all heads
    together, the channels of the convolution before the heads, and the elements of the state. With
    `copied` the convolution's state is a copy, and no slice of its whole input.
    """

    heads: int
    inner: int
    channels: int
    elements: int
    single: bool = True
    copied: bool = False


def recurrence_of(config: Mapping[str, Any]) -> Recurrence:
    """The sizes of the layers that keep a state."""
    width, heads, size = width_of(config), heads_of(config), first(config, "head_dim")
    if value_heads := first(config, "linear_num_value_heads"):
        key_size = first(config, "linear_key_head_dim")
        inner = value_heads * first(config, "linear_value_head_dim")
        keys = first(config, "linear_num_key_heads") * key_size
        return Recurrence(value_heads, inner, 2 * keys + inner, inner * key_size, copied=True)
    if config.get("model_type") == "rwkv7":
        # Two mixers know the token before.
        return Recurrence(width // (size or 1), width, 2 * width, width * size, single=False)
    if first(config, "conv_L_cache"):
        # gear has convolutions over keys and values, lfm2 over the hidden state.
        keys = 2 * first(config, "num_key_value_heads") * size
        channels = keys if config.get("model_type") == "gear" else width
        return Recurrence(0, 0, channels, 0)
    if first(config, "conv1d_width"):
        inner = first(config, "lru_width") or width
        return Recurrence(heads, inner, inner, inner, single=False)
    has_short = "short_conv_kernel_size" in config or "kda_layers" in config
    if has_short or first(config, "layer_group_size"):
        heads = first(config, "num_heads") or heads
        inner = heads * (size or (width // heads if heads else 0))
        channels = 3 * inner if has_short else 0
        single = config.get("model_type") != "bailing_moe_linear"
        elements = inner * (inner // heads if heads else 0)
        return Recurrence(heads, inner, channels, elements, single=single, copied=True)
    return _state_space(config, width)


def state_bytes_of(config: Mapping[str, Any], element_bytes: int) -> int:
    """Bytes of one layer's state: of the convolution, and of the recurrence behind it."""
    recurrence = recurrence_of(config)
    kernel = first(config, *_KERNEL_NAMES) or _USUAL_KERNEL
    convolved_tokens = 1 if config.get("model_type") == "rwkv7" else kernel - 1
    convolution = convolved_tokens * recurrence.channels * element_bytes
    return convolution + recurrence.elements * (
        _SINGLE_BYTES if recurrence.single else element_bytes
    )


def _state_space(config: Mapping[str, Any], width: int) -> Recurrence:
    size = first(config, "state_size", "ssm_state_size", "mamba_d_state", "d_state")
    heads = first(config, "mamba_num_heads", "mamba_n_heads", "num_heads")
    names = ("mamba_head_dim", "mamba_d_head", "hidden_size_per_head", "head_dim")
    inner = heads * first(config, *names)
    inner = inner or first(config, "mamba_expand") * width
    inner = inner or first(config, "d_inner", "intermediate_size")
    inner = inner or first(config, "expand") * width
    groups = first(config, "n_groups", "mamba_n_groups") or 1
    # The first mamba has neither heads nor groups, and a state of its weights' precision.
    channels = inner + 2 * groups * size if heads else inner
    return Recurrence(heads, inner, channels, inner * size, single=heads > 0)
