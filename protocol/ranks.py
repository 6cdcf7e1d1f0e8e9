"""How processes of one model reach each other, as mlx.distributed calls it, and what each has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

RankBackend: TypeAlias = Literal["ring", "jaccl", "nccl"]
RankSplit: TypeAlias = Literal["tensor", "pipeline"]

# The exit status of a rank that ends because it has lost another one.
LEFT_ALONE: Final = 3

# Heads that mlx-lm divides over the ranks without asking whether that can be.
_HEADS: Final = (
    "num_attention_heads",
    "num_key_value_heads",
    "linear_num_key_heads",
    "linear_num_value_heads",
)
# Attention over a latent, which every rank keeps whole.
_LATENT: Final = "kv_lora_rank"


def undivided(config: Mapping[str, Any], size: int) -> str | None:
    """Why so many ranks can't share the heads of a model with this config.json by tensors."""
    inner = config.get("text_config")
    config = {**config, **(inner if isinstance(inner, dict) else {})}
    for name in _HEADS:
        count = config.get(name)
        if _LATENT in config and name == "num_key_value_heads":
            continue
        if isinstance(count, int) and count % size:
            return f"its {name} is {count}, which {size} doesn't divide"
    return None
