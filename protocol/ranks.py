"""How processes of one model reach each other, as mlx.distributed calls it, and what each has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

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


class Ranks(Struct, frozen=True, kw_only=True):
    """The processes that compute one model together; rank 0 is told this, and the others follow it.

    `addresses` has for each rank the places, host:port, at which its neighbours reach it; of NCCL
    and JACCL only the first one of rank 0 counts. `devices` are JACCL's: for each rank its RDMA
    device towards each other one, None towards itself. The followers connect to `endpoint`, a
    ZeroMQ address, and prove themselves by the first of the `keys`. One that is silent for
    `silence_s` is lost.
    """

    size: int
    backend: RankBackend
    split: RankSplit
    addresses: tuple[tuple[str, ...], ...]
    endpoint: str
    keys: tuple[bytes, bytes]
    silence_s: float
    devices: tuple[tuple[str | None, ...], ...] = ()


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
