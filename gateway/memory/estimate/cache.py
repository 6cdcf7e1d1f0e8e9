"""Bytes that one sequence's cache takes, from config.json.

It follows what mlx-lm's models put into their caches (their `make_cache` and `update_and_fetch`):
keys and values of every token, those of a window, a compressed latent, or a state of fixed size.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

# mlx-lm's caches grow by so many tokens at once.
_STEP_TOKENS: Final = 256
# States are summed up in single precision.
_STATE_ELEMENT_BYTES: Final = 4


class Layer(StrEnum):
    FULL = "keeps all tokens"
    WINDOW = "keeps a window"
    STATE = "keeps a state"
    BOTH = "keeps all tokens and a state"
    NONE = "keeps nothing"


class CacheShape(Struct, frozen=True):
    """What a sequence takes: for each token, for each token of the window at most, and at once."""

    full_token_bytes: int
    window_token_bytes: int
    window_tokens: int
    state_bytes: int

    def sequence_bytes(self, tokens: int) -> int:
        """Bytes of a sequence of so many tokens."""
        steps = -(-tokens // _STEP_TOKENS)
        windowed = min(steps * _STEP_TOKENS, self.window_tokens) if self.window_tokens else 0
        return (
            steps * _STEP_TOKENS * self.full_token_bytes
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
# These keep keys and values as they are, although they are projected from a latent.
_DECOMPRESSED: Final = ("deepseek_v2", "minicpm3")
_CHUNKED: Final = ("llama4", "llama4_text")
_WINDOW_NAMES: Final = (
    "sliding_window",
    "attention_chunk_size",
    "sliding_window_size",
    "attention_window_size",
    "window_size",
)


def cache_shape(config: Mapping[str, Any], element_bytes: int) -> CacheShape:
    """The shape of a model's caches; what its configuration doesn't say counts as keeping all."""
    text = {**config, **(config.get("text_config") or {})}
    layers = _layers(text)
    kept = [each for each in layers if each in (Layer.FULL, Layer.BOTH)]
    windowed = [each for each in layers if each is Layer.WINDOW]
    states = [each for each in layers if each in (Layer.STATE, Layer.BOTH)]
    token_bytes = _token_bytes(text, element_bytes)
    return CacheShape(
        full_token_bytes=len(kept) * token_bytes,
        window_token_bytes=len(windowed) * token_bytes,
        window_tokens=_window_tokens(text) if windowed else 0,
        state_bytes=len(states) * _state_bytes(text, element_bytes),
    )


def runs_alone(config: Mapping[str, Any]) -> bool:
    """Whether the model's caches can't be merged into a batch. mlx-lm empties its buffers after
    each chunk of such a prompt.
    """
    return config.get("model_type") in _CHUNKED


def _window_tokens(config: Mapping[str, Any]) -> int:
    window = _first(config, *_WINDOW_NAMES)
    # Chunks are cut back before they grow by another step.
    return window + _STEP_TOKENS if config.get("model_type") in _CHUNKED else window


def _layers(config: Mapping[str, Any]) -> list[Layer]:
    count = _first(config, "num_hidden_layers", "n_layers", "n_layer", "num_layers")
    layers = _named_layers(config, count)
    shared = _first(config, "num_kv_shared_layers")
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
    if interval := _first(config, "full_attention_interval"):
        return [Layer.STATE if (i + 1) % interval else Layer.FULL for i in range(count)]
    if period := _first(config, "attn_layer_period"):
        offset = _first(config, "attn_layer_offset")
        return [Layer.FULL if i % period == offset else Layer.STATE for i in range(count)]
    if pattern := _first(config, "sliding_window_pattern"):
        return [Layer.WINDOW if (i + 1) % pattern else Layer.FULL for i in range(count)]
    return [Layer.FULL] * count


def _token_bytes(config: Mapping[str, Any], element_bytes: int) -> int:
    """Bytes that a token takes in one layer of attention."""
    heads = _first(config, "num_attention_heads", "n_heads", "n_head")
    rope = _first(config, "qk_rope_head_dim")
    if rank := _first(config, "kv_lora_rank"):
        if config.get("model_type") not in _DECOMPRESSED:
            return (rank + rope) * element_bytes
        key = _first(config, "qk_nope_head_dim") + rope
        return heads * (key + (_first(config, "v_head_dim") or key)) * element_bytes
    hidden = _first(config, "hidden_size", "d_model", "n_embd", "dim")
    key = _first(config, "head_dim") or (hidden // heads if heads else 0)
    value = _first(config, "v_head_dim") or key
    groups = _first(config, "num_key_value_heads", "num_kv_heads", "n_kv_heads") or heads
    return groups * (key + value) * element_bytes


def _state_bytes(config: Mapping[str, Any], element_bytes: int) -> int:
    """Bytes of one layer's state: of a convolution and of the recurrence behind it."""
    kernel = _first(config, "conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim", "d_conv")
    if value_heads := _first(config, "linear_num_value_heads"):
        key_size = _first(config, "linear_key_head_dim")
        value_size = _first(config, "linear_value_head_dim")
        keys = _first(config, "linear_num_key_heads") * key_size
        channels = 2 * keys + value_heads * value_size
        recurrence = value_heads * key_size * value_size
    else:
        size = _first(config, "state_size", "ssm_state_size", "mamba_d_state", "d_state")
        heads = _first(config, "num_heads", "mamba_num_heads", "mamba_n_heads")
        inner = heads * _first(config, "head_dim", "mamba_head_dim", "mamba_d_head")
        inner = inner or _first(config, "intermediate_size", "d_inner", "lru_width")
        groups = _first(config, "n_groups", "mamba_n_groups") or 1
        channels = inner + 2 * groups * size
        recurrence = inner * size
    convolution = max(kernel - 1, 0) * channels * element_bytes
    return convolution + recurrence * _STATE_ELEMENT_BYTES


def _first(config: Mapping[str, Any], *names: str) -> int:
    """The first of these keys that holds a positive whole number; 0 if none does."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0
