"""The sizes of layers that keep a state of fixed size, from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from gateway.memory.layers import first, heads_of, width_of

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
    kept_tokens = 1 if config.get("model_type") == "rwkv7" else kernel - 1
    convolution = kept_tokens * recurrence.channels * element_bytes
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
