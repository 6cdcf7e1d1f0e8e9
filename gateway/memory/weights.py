"""Bytes of weights, from the headers of safetensors files, and how ranks divide a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from gateway.config.model import Model
from gateway.config.model_folders import find_adapter, find_draft
from gateway.config.model_settings import ModelSettings
from gateway.memory.caches import DECOMPRESSED, first, layers_of
from gateway.system.memory import BackEnd, back_end
from protocol.life import RankSplit
from protocol.model_files import Tensor, read_header

# As mlx-lm tells them when it splits a model by layers.
_LAYER: Final = re.compile(r"(?:^|\.)layers\.\d+\.")
_ELEMENT_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class EstimateError(Exception):
    """Why nothing can be said of a model, in one sentence."""


class Weights(Struct, frozen=True):
    """`element_bytes` is that of the floating-point type that most tensors have: activations and
    caches have it too, as quantized layers compute in the type of their scales. `layer_bytes` are
    in the layers, and not in embeddings or heads.
    """

    bytes: int
    element_bytes: int
    layer_bytes: int = 0


def read_weights(folder: Path) -> Weights:
    """Sum up the shards that mlx-lm loads (model*.safetensors).

    Raises:
        EstimateError: there are none, or one can't be read.
    """
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        # mlx-lm too keeps one of tensors with the same name, as when shards lie beside their whole.
        tensors |= _tensors(path)
    if not tensors:
        raise EstimateError(f"{folder} has no weights (model*.safetensors)")
    floats = Counter(each.dtype for each in tensors.values() if each.dtype in _ELEMENT_BYTES)
    element_bytes = _ELEMENT_BYTES[floats.most_common(1)[0][0]] if floats else 2
    layer_bytes = sum(each.bytes for name, each in tensors.items() if _LAYER.search(name))
    return Weights(sum(each.bytes for each in tensors.values()), element_bytes, layer_bytes)


def adapter_bytes(folder: Path) -> int:
    """Bytes that a LoRA adapter adds. Full weights take the place of the model's, but both are in
    memory while they are loaded.

    Raises:
        EstimateError: it can't be read.
    """
    return sum(each.bytes for each in _tensors(folder / "adapters.safetensors").values())


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return read_header(path).tensors
    except (OSError, ValueError) as error:
        raise EstimateError(f"{path} can't be read: {error}") from error


class RankPart(Struct, frozen=True):
    """The part of the largest rank: its shares of the layers' weights and of the caches, and how
    many of its layers keep something. Each rank has all weights that are in no layer, as the
    embedding.
    """

    weights: float
    cache: float
    layers: int


def part_of(text: Mapping[str, Any], ranks: int, split: RankSplit) -> RankPart:
    """`text` is the configuration of the language model.

    Raises:
        ValueError: it makes no sense.
    """
    layers = len(layers_of(text))
    if split == "pipeline":
        # mlx-lm gives the first ranks the layers that are left over.
        own = -(-layers // ranks)
        share = own / max(1, layers)
        return RankPart(share, share, own)
    # Heads are divided; a latent is one for all of them.
    latent = first(text, "kv_lora_rank") and text.get("model_type") not in DECOMPRESSED
    return RankPart(1 / ranks, 1.0 if latent else 1 / ranks, layers)


def sharing(ranks: int) -> int:
    """How many of a model's `ranks` on this machine share its budget. On cards each rank has a card
    of its own, and the budget is that of the first card, which has rank 0 and is the fullest.
    """
    return 1 if back_end() is BackEnd.CUDA else ranks


class LoadOptions(Struct, frozen=True):
    """The options of a load that an estimate depends on. So many `ranks` compute the model, and
    `ranks_here` of them share the budget of this machine. The adapter and the draft model are
    folders.
    """

    kv_bits: int | None = None
    adapter: Path | None = None
    draft: Path | None = None
    pictures: bool = False
    ranks: int = 1
    split: RankSplit = "tensor"
    ranks_here: int = 1


def options_of(model: Model) -> LoadOptions:
    return LoadOptions(
        model.settings.kv_bits,
        None if model.adapter is None else Path(model.adapter),
        None if model.draft is None else Path(model.draft),
        model.settings.pictures,
        len(model.settings.places),
        model.settings.split,
        sharing(model.settings.ranks_here),
    )


def options_in(settings: ModelSettings) -> LoadOptions:
    """The options of a model whose files were not looked for yet.

    Raises:
        ValueError: the adapter or the draft model isn't there; with a sentence for the operator.
    """
    return LoadOptions(
        settings.kv_bits,
        None if settings.adapter is None else Path(find_adapter(settings.adapter, ())),
        None if settings.draft_model is None else Path(find_draft(settings.draft_model, ())),
        settings.pictures,
        len(settings.places),
        settings.split,
        sharing(settings.ranks_here),
    )
