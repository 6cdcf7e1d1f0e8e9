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
from gateway.memory.caches import DECOMPRESSED
from gateway.memory.layers import first, layers_of
from gateway.system.memory import BackEnd, back_end
from protocol.life import RankSplit
from protocol.model_files import Tensor, read_header
from protocol.model_folder import weight_files

# The names of tensors that are in a layer, as mlx-lm tells when it splits a model by layers.
_LAYER: Final = re.compile(r"(?:^|\.)layers\.\d+\.")
_OWN_HEAD: Final = re.compile(r"(?:^|\.)(?:mtp\.fc|eh_proj)\.weight$")
_ELEMENT_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class EstimateError(Exception):
    """A model can't be estimated. The message says why, in one sentence."""


class Weights(Struct, frozen=True):
    """The bytes of a model's weights. `element_bytes` is the size of the floating-point type that
    most tensors have. Activations and caches have this type too, since quantized layers compute in
    the type of their scales. `layer_bytes` are in the layers, and not in embeddings or heads.
    `has_own_head`: the model can guess tokens by a head of its own.
    """

    bytes: int
    element_bytes: int
    layer_bytes: int = 0
    has_own_head: bool = False


def read_weights(folder: Path, *, pictures: bool = False) -> Weights:
    """Sum up the weight files that a load opens.

    Raises:
        EstimateError: there are no weight files, or a file can't be read.
    """
    tensors: dict[str, Tensor] = {}
    try:
        paths = weight_files(folder, pictures=pictures)
    except OSError as error:
        raise EstimateError(f"{folder} can't be read: {error}") from error
    for path in paths:
        # Of tensors with the same name mlx-lm keeps one, too. Such tensors occur if a folder has
        # a copy of the weights under another name.
        tensors |= _tensors(path)
    if not tensors:
        raise EstimateError(f"{folder} has no weights (model*.safetensors)")
    floats = Counter(tensor.dtype for tensor in tensors.values() if tensor.dtype in _ELEMENT_BYTES)
    element_bytes = _ELEMENT_BYTES[floats.most_common(1)[0][0]] if floats else 2
    layer_bytes = sum(tensor.bytes for name, tensor in tensors.items() if _LAYER.search(name))
    has_own_head = any(_OWN_HEAD.search(name) for name in tensors)
    weight_bytes = sum(tensor.bytes for tensor in tensors.values())
    return Weights(weight_bytes, element_bytes, layer_bytes, has_own_head)


def adapter_bytes(folder: Path) -> int:
    """Bytes that an adapter adds. If it has full weights, these replace the model's, but both are
    in memory during the load.

    Raises:
        EstimateError: the adapter can't be read.
    """
    return sum(tensor.bytes for tensor in _tensors(folder / "adapters.safetensors").values())


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return read_header(path).tensors
    except (OSError, ValueError) as error:
        raise EstimateError(f"{path} can't be read: {error}") from error


class RankPart(Struct, frozen=True):
    """The part of a model that the largest rank has: its shares of the layers' weights and of the
    caches, and the number of its layers. Each rank also has all weights outside the layers, such as
    the embedding.
    """

    weights: float
    cache: float
    layers: int


def part_of(text: Mapping[str, Any], ranks: int, split: RankSplit) -> RankPart:
    """The part of the largest rank. `text` is the configuration of the language model.

    Raises:
        ValueError: the configuration makes no sense.
    """
    layers = len(layers_of(text))
    if split == "pipeline":
        # If the layers can't be divided evenly, mlx-lm gives the first ranks the remaining layers.
        rank_layers = -(-layers // ranks)
        share = rank_layers / max(1, layers)
        return RankPart(share, share, rank_layers)
    # Ranks divide the heads of a cache among them. Each rank keeps a latent whole.
    latent = first(text, "kv_lora_rank") and text.get("model_type") not in DECOMPRESSED
    return RankPart(1 / ranks, 1.0 if latent else 1 / ranks, layers)


def sharing(ranks: int) -> int:
    """How many of a model's `ranks` on this machine share the machine's budget. On cards each rank
    has a card of its own. The budget is then that of the first card, which has rank 0 and is the
    fullest.
    """
    return 1 if back_end() is BackEnd.CUDA else ranks


class LoadOptions(Struct, frozen=True):
    """The options of a load that an estimate depends on. `ranks` is the number of ranks that
    compute the model, and `ranks_here` of these share the budget of this machine. The adapter and
    the draft model are folders.
    """

    kv_bits: int | None = None
    adapter: Path | None = None
    draft: Path | None = None
    pictures: bool = False
    ranks: int = 1
    split: RankSplit = "tensor"
    ranks_here: int = 1

    @property
    def takes_own_head(self) -> bool:
        """Whether a model that has a head of its own may guess by it."""
        return self.draft is None and not self.pictures and self.ranks == 1


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
        ValueError: the adapter or the draft model isn't there. The message is for the operator.
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
