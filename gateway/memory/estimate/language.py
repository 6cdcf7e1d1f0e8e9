"""The language model's part of a config.json, with what files leave out.

Published files omit what is a default of their own library, as gemma-3-12b's does the size of its
heads and the pattern of its windows. These are the defaults that mlx-lm's `ModelArgs` take then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
# Of the model around the language model, in mlx-lm's gemma3.ModelArgs.
_AROUND: Final = {"gemma3": {"num_attention_heads": 8, "num_key_value_heads": 4}}


def language_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of the language model, whether the file nests them or not."""
    nested = config.get("text_config")
    nested = nested if isinstance(nested, dict) else {}
    merged = {**config, **nested}
    defaults = DEFAULTS.get(str(merged.get("model_type")), {})
    around = _AROUND.get(str(config.get("model_type")), {}) if nested else {}
    return {**defaults, **around, **{k: v for k, v in merged.items() if v is not None}}
