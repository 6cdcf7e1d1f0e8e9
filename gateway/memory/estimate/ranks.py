"""Which part of a model each of several ranks has, as mlx-lm's models split themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gateway.memory.estimate.cache import DECOMPRESSED, first, layers_of
from protocol.ranks import RankSplit


class Part(Struct, frozen=True):
    """Of the rank that has most: shares of the layers' weights, and of the caches, and how many
    layers keep something. What is in no layer, as the embedding, every rank has whole.
    """

    weights: float
    cache: float
    layers: int


def part_of(text: Mapping[str, Any], ranks: int, split: RankSplit) -> Part:
    """`text` is the configuration of the language model.

    Raises:
        ValueError: it makes no sense.
    """
    layers = len(layers_of(text))
    if split == "pipeline":
        # mlx-lm gives the first ranks the layers that are left over.
        own = -(-layers // ranks)
        share = own / max(1, layers)
        return Part(share, share, own)
    # Heads are divided; a latent is one for all of them.
    latent = first(text, "kv_lora_rank") and text.get("model_type") not in DECOMPRESSED
    return Part(1 / ranks, 1.0 if latent else 1 / ranks, layers)
