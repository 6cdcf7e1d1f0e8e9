"""Which models are encoders by their config.json, and which library has their layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# The modules of mlx-embeddings, by the `model_type` of encoders.
ENCODERS: Final = {
    "bert": "bert",
    "roberta": "xlm_roberta",
    "xlm-roberta": "xlm_roberta",
    "camembert": "xlm_roberta",
    "modernbert": "modernbert",
    # mlx-embeddings has no modules for these types. They are listed so that the error can say that
    # they are encoders.
    "albert": "",
    "deberta-v2": "",
    "distilbert": "",
    "electra": "",
    "gte": "",
    "mpnet": "",
    "new": "",
    "nomic_bert": "",
}
# The modules for decoders that config.json turns into encoders, by `model_type`.
_TURNED: Final = {"gemma3_text": "gemma3_text"}
# The modules of mlx-vlm whose tokens see their whole text.
_LLAMA: Final = "llama_bidirec"
_LFM2: Final = "lfm2_embedding"
_MINISTRAL: Final = "ministral3_embedding"
_GEMMA: Final = "embedding_gemma2"
MLX_VLMS: Final = frozenset((_LLAMA, _LFM2, _MINISTRAL, _GEMMA))
# LFM2 without a head; the last is causal. Chat models have Lfm2ForCausalLM.
LFM2_CAUSAL: Final = "Lfm2Model"
_LFM2S: Final = ("Lfm2BidirectionalModel", "Lfm2BidirectionalForMaskedLM", LFM2_CAUSAL)
# Models of pages of documents.
_OF_PAGES: Final = ("colidefics3", "colpali", "colqwen2", "colqwen2_5")


def encoder_of(config: Mapping[str, Any]) -> str | None:
    """The name of an encoder's module in mlx-embeddings, or in mlx-vlm if it is among `MLX_VLMS`;
    empty: there is no module for this encoder; None: the model is no encoder.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return None
    if config.get("use_bidirectional_attention") and kind in _TURNED:
        return _TURNED[kind]
    return ENCODERS.get(kind, _of_mlx_vlm(kind, config))


def _of_mlx_vlm(kind: str, config: Mapping[str, Any]) -> str | None:
    match kind:
        case "llama_bidirec" | "llama_nemotron_vl" | "llama_nemotron_vl_embedding":
            return _LLAMA
        case "lfm2" if architectures_of(config).intersection(_LFM2S):
            return _LFM2
        case "ministral3" if config.get("is_causal") is False:
            return _MINISTRAL
        case "embedding_gemma2":
            return _GEMMA
        case _:
            return None


def architectures_of(config: Mapping[str, Any]) -> frozenset[str]:
    """The names of classes in config.json."""
    names = config.get("architectures")
    return frozenset(map(str, names)) if isinstance(names, list) else frozenset()


def makes_token_vectors(modules: Any) -> bool:
    """Whether the modules in sentence-transformers' modules.json make a vector of each token: their
    layers work on tokens if nothing is pooled, as in PyLate's files.
    """
    listed = modules if isinstance(modules, list) else []
    types = [str(module.get("type")) for module in listed if isinstance(module, dict)]
    kinds = {kind.rpartition(".")[2] for kind in types}
    return "Dense" in kinds and "Pooling" not in kinds


def unserved(config: Mapping[str, Any]) -> str | None:
    """Why a vector model isn't served, though mlx-vlm has its layers; None: this doesn't hold."""
    kind = config.get("model_type")
    if kind in _OF_PAGES:
        return (
            f"models of the kind {kind} compare a text with pictures of pages, and Bulkhead gives "
            "texts alone to models that make vectors"
        )
    if kind == "qwen3_vl_embedding":
        return (
            "config.json has mlx-vlm's own name for this kind: take a conversion whose model_type "
            "is qwen3_vl"
        )
    if encoder_of(config) not in MLX_VLMS:
        return None
    scoring = [name for name in architectures_of(config) if name.endswith("Classification")]
    if scoring:
        return (
            f"its head ({scoring[0]}) scores texts in a form that only its model card tells: take "
            "the embedding model of the same family"
        )
    if config.get("bidirectional_attention") is False:
        return "its tokens see earlier tokens alone, and mlx-vlm's layers for it show them all"
    layers = config.get("layer_types")
    if encoder_of(config) == _MINISTRAL and isinstance(layers, list):
        windows = [layer for layer in layers if layer != "full_attention"]
        if windows:
            return f"it has layers of the kind {windows[0]}, which mlx-vlm's encoders lack"
    return None
