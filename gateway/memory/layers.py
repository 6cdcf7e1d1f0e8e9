"""What each layer of a model keeps of a sequence, from config.json."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from protocol.life import CACHE_STEP_TOKENS

_MOST_LAYERS: Final = 10_000


class Layer(StrEnum):
    FULL = "keeps all tokens"
    WINDOW = "keeps a window"
    STATE = "keeps a state"
    BOTH = "keeps all tokens and a state"
    NONE = "keeps nothing"


# Names, letters and numbers in configurations. What isn't here counts as keeping all tokens.
_KINDS: Final = {
    "sliding_attention": Layer.WINDOW,
    "local_attention": Layer.WINDOW,
    "chunked_attention": Layer.WINDOW,
    "linear_attention": Layer.STATE,
    "mamba": Layer.STATE,
    "recurrent": Layer.STATE,
    "conv": Layer.STATE,
    "conv_mixer": Layer.STATE,
    "mlp": Layer.NONE,
    "moe": Layer.NONE,
    # nemotron_h's letters.
    "M": Layer.STATE,
    "-": Layer.NONE,
    "E": Layer.NONE,
    # exaone4's letter.
    "L": Layer.WINDOW,
    # mimo_v2_flash's number.
    1: Layer.WINDOW,
}
# The keys that list the kinds of layers. A shorter list is repeated.
_LISTS: Final = (
    "hybrid_override_pattern",
    "layers_block_type",
    "layer_types",
    "hybrid_layer_pattern",
    "sliding_window_pattern",
)
# The lists of recurrent_gemma, whose attention has a window.
_LOCAL_LISTS: Final = ("block_types", "_block_types")
# Where a file has a list of these, each layer has its own.
_PER_LAYER: Final = (
    "num_attention_heads",
    "num_key_value_heads",
    "num_query_heads",
    "num_kv_heads",
    "head_dim",
    "layer_types",
    "sparse_attention_freq",
)
_ONLY_STATES: Final = ("mamba", "mamba2", "rwkv7", "falcon_mamba")
# mlx-lm has no windows for these, whatever the file's layer types say.
_ONLY_FULL: Final = (
    "dots1",
    "gemma2",
    "llama4_text",
    "minimax",
    "qwen2",
    "qwen2_moe",
    "qwen2_vl",
    "qwen2_vl_text",
    "qwen3",
    "qwen3_moe",
)
CHUNKED: Final = ("llama4",)
# Periods that mlx-lm takes if a file names neither the layers' kinds nor a period.
_WINDOW_PERIODS: Final = {"gpt_oss": 2, "muse_glimmer": 4, "olmo3": 4, "spark2_5": 4, "step3p5": 2}
_STATE_PERIODS: Final = {
    "olmo_hybrid": 4,
    "qwen3_5": 4,
    "qwen3_5_text": 4,
    "qwen3_5_moe": 4,
    "qwen3_5_moe_text": 4,
    "qwen3_next": 4,
}
_WINDOW_NAMES: Final = (
    "sliding_window",
    "attention_chunk_size",
    "sliding_window_size",
    "attention_window_size",
    "window_size",
    "loop_window_size",
)


def first(config: Mapping[str, Any], *names: str) -> int:
    """The value of the first of these keys that has a positive whole number; 0 if no key has."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def listed(config: Mapping[str, Any], name: str) -> Sequence[Any]:
    """The list, or the letters, that the key has; nothing if it has neither."""
    value = config.get(name)
    return value if isinstance(value, list | str) else ()


def width_of(config: Mapping[str, Any]) -> int:
    return first(config, "hidden_size", "d_model", "n_embd", "dim", "hidden_dim", "model_dim")


def heads_of(config: Mapping[str, Any]) -> int:
    return first(config, "num_attention_heads", "n_heads", "n_head", "num_heads", "num_query_heads")


def window_of(config: Mapping[str, Any]) -> int:
    """The most tokens that a layer with a window keeps."""
    window = first(config, *_WINDOW_NAMES)
    # A window in chunks grows by a step before it is cut back.
    return window + CACHE_STEP_TOKENS if config.get("model_type") in CHUNKED else window


def layers_of(config: Mapping[str, Any]) -> list[Layer]:
    """The kind of each layer, by the configuration of the language model."""
    names = ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_transformer_layers")
    count = first(config, *names) or max(len(listed(config, name)) for name in _LISTS)
    if count > _MOST_LAYERS:
        raise ValueError(f"it has {count:,} layers")
    layers = _named_layers(config, count)
    if not first(config, *_WINDOW_NAMES):
        layers = [Layer.FULL if layer is Layer.WINDOW else layer for layer in layers]
    # The last layers take the keys and values of earlier ones.
    shared = first(config, "num_kv_shared_layers", "num_kv_reuse_layers")
    return [*layers[: count - shared], *([Layer.NONE] * shared)] if shared < count else layers


def settings_of(config: Mapping[str, Any], layer: Layer) -> dict[str, Any]:
    """The settings of attention in layers of this kind, some of which have their own."""
    layer_settings = dict(config)
    if layer is Layer.WINDOW:
        layer_settings |= {
            name.replace("swa_", ""): config[name] for name in config if "swa_" in name
        }
        others = config.get("attention_other_setting")
        return layer_settings | others if isinstance(others, dict) else layer_settings
    layer_settings["head_dim"] = first(config, "global_head_dim", "head_dim")
    if config.get("attention_k_eq_v"):
        names = ("num_global_key_value_heads", "num_key_value_heads")
        layer_settings["num_key_value_heads"] = first(config, *names)
    return layer_settings


def at_layer(settings: dict[str, Any], index: int) -> Mapping[str, Any]:
    """The settings of one layer, where lists have a value for each."""
    layer_settings = {
        name: values[index]
        for name in _PER_LAYER
        if index < len(values := listed(settings, name)) and isinstance(values, list)
    }
    if group := first(_attention_of_block(settings, index), "n_heads_in_group"):
        layer_settings["num_key_value_heads"] = heads_of(settings) // group
    return ChainMap(layer_settings, settings)


def _named_layers(config: Mapping[str, Any], count: int) -> list[Layer]:
    kind = str(config.get("model_type"))
    if kind in _ONLY_STATES:
        return [Layer.STATE] * count
    if kind in _ONLY_FULL:
        return [Layer.FULL] * count
    if kind == "falcon_h1":
        return [Layer.BOTH] * count
    if kind in CHUNKED:
        # mlx-lm's own rule, whatever the file's layer types say.
        return _every(4, count, Layer.WINDOW)
    for name in _LISTS:
        if kinds := listed(config, name):
            return [_KINDS.get(kinds[i % len(kinds)], Layer.FULL) for i in range(count)]
    for name in _LOCAL_LISTS:
        if kinds := listed(config, name):
            return [_KINDS.get(kinds[i % len(kinds)], Layer.WINDOW) for i in range(count)]
    if indices := frozenset(listed(config, "full_attn_idxs")):
        return [Layer.FULL if i in indices else Layer.STATE for i in range(count)]
    if numbers := frozenset(listed(config, "kda_layers")):
        return [Layer.STATE if i + 1 in numbers else Layer.FULL for i in range(count)]
    if indices := frozenset(listed(config, "sliding_window_layers")):
        return [Layer.WINDOW if i in indices else Layer.FULL for i in range(count)]
    if "block_configs" in config:
        blocks = [_attention_of_block(config, i) for i in range(count)]
        return [
            Layer.NONE if block.get("no_op") or block.get("replace_with_linear") else Layer.FULL
            for block in blocks
        ]
    return _periodic(config, count, kind)


def _periodic(config: Mapping[str, Any], count: int, kind: str) -> list[Layer]:
    if interval := first(config, "full_attention_interval") or _STATE_PERIODS.get(kind, 0):
        return _every(interval, count, Layer.STATE)
    if group := first(config, "layer_group_size"):
        whole = count // group * group
        return [*_every(group, whole, Layer.STATE), *([Layer.FULL] * (count - whole))]
    if period := first(config, "attn_layer_period"):
        offset = first(config, "attn_layer_offset")
        return [Layer.FULL if i % period == offset else Layer.STATE for i in range(count)]
    if (step := first(config, "mamba_step")) and config.get("mamba_enabled", True):
        full = min(step // 2, count - 1)
        return [Layer.FULL if i % step == full else Layer.STATE for i in range(count)]
    if pattern := first(config, "sliding_window_pattern") or _WINDOW_PERIODS.get(kind, 0):
        return _every(pattern, count, Layer.WINDOW)
    return [Layer.FULL] * count


def _every(period: int, count: int, others: Layer) -> list[Layer]:
    """The last layer of each period keeps all tokens, and the others are `others`."""
    return [others if (i + 1) % period else Layer.FULL for i in range(count)]


def _attention_of_block(config: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """What nemotron-nas says of a layer's attention."""
    blocks = listed(config, "block_configs")
    block = blocks[index] if index < len(blocks) else None
    attention = block.get("attention") if isinstance(block, dict) else None
    return attention if isinstance(attention, dict) else {}
