"""Random-weight vector models of mlx-vlm's architectures, with the demo's tokens and a recipe."""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from tests.support.shapes import DEMO

ROWS: Final = int(json.loads((DEMO / "config.json").read_text())["vocab_size"])
_SIZES: Final = {
    "vocab_size": ROWS,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
_LLAMA: Final = {**_SIZES, "model_type": "llama_bidirec"}
_LFM2: Final = {
    **_SIZES,
    "model_type": "lfm2",
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_dim": 32,
    "block_ff_dim": 64,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
    "layer_types": ["conv", "full_attention", "conv"],
}
# As published files have them, by the names that these tests give.
VLM_ENCODERS: Final[dict[str, dict[str, Any]]] = {
    "llama": {**_LLAMA, "architectures": ["LlamaBidirectionalModel"]},
    "llama_of_pictures": {
        "model_type": "llama_nemotron_vl",
        "architectures": ["LlamaNemotronVLModel"],
        "bidirectional_attention": True,
        "llm_config": _LLAMA,
        "vision_config": {"model_type": "siglip_vision_model"},
    },
    "lfm2": {**_LFM2, "architectures": ["Lfm2BidirectionalModel"]},
    "lfm2_of_masked_words": {**_LFM2, "architectures": ["Lfm2BidirectionalForMaskedLM"]},
    "ministral3": {
        **_SIZES,
        "model_type": "ministral3",
        "architectures": ["Ministral3Model"],
        "is_causal": False,
        "rope_parameters": {
            "rope_theta": 1e6,
            "rope_type": "default",
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 4,
        },
    },
    "embedding_gemma2": {
        "model_type": "embedding_gemma2",
        "text_config": {
            **_SIZES,
            "model_type": "embedding_gemma2_text",
            "hidden_size_per_layer_input": 16,
            "embedding_dim": 24,
            "sliding_window": 2,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "per_layer_config": {"2": {"head_dim": 16, "num_key_value_heads": 1}},
        },
        "vision_config": {"model_type": "gemma4_vision"},
        "audio_config": None,
    },
}
_MODULES: Final = {
    "embedding_gemma2": "embedding_gemma2",
    "lfm2": "lfm2_embedding",
    "lfm2_of_masked_words": "lfm2_embedding",
    "llama": "llama_bidirec",
    "llama_of_pictures": "llama_bidirec",
    "ministral3": "ministral3_embedding",
}
# What published files have before the names of the weights, instead of "model."; their own names
# follow for the model of pictures, whose other parts are here, too.
_PREFIXES: Final = {
    "lfm2_of_masked_words": "lfm2.",
    "llama_of_pictures": "language_model.model.",
}
# Weights of parts that make nothing of texts.
_OTHERS: Final = {
    "embedding_gemma2": ("model.vision_tower.patch.weight", "model.embed_audio.proj.weight"),
    "lfm2_of_masked_words": ("lm_head.weight",),
    "llama_of_pictures": ("vision_model.patch.weight", "mlp1.0.weight"),
}
QUERY_PREFIX: Final = "<|im_start|>"
DOCUMENT_PREFIX: Final = "<think>"
QUERY_TOKENS: Final = 12


def own_model(name: str) -> Any:
    """mlx-vlm's own model, with the weights of `write_vlm_encoder`."""
    module = import_module(f"mlx_vlm.models.{_MODULES[name]}")
    config = VLM_ENCODERS[name]
    arguments = config.get("llm_config", {**config, "vision_config": None})
    mx.random.seed(7)
    model = module.Model(module.ModelConfig.from_dict(json.loads(json.dumps(arguments))))
    # States of small random weights depend on the token itself alone.
    model.update(tree_map(lambda array: array.astype(mx.float32) * 2, model.parameters()))
    return model


def write_vlm_encoder(folder: Path, name: str) -> Path:
    """Save a model without a recipe."""
    folder.mkdir(parents=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, folder / file)
    (folder / "config.json").write_text(json.dumps(VLM_ENCODERS[name]))
    prefix = _PREFIXES.get(name, "")
    weights = {
        f"{prefix}{weight.removeprefix('model.')}": array
        for weight, array in tree_flatten(own_model(name).parameters())
    }
    others = {weight: mx.zeros((2, 2)) for weight in _OTHERS.get(name, ())}
    mx.save_safetensors(str(folder / "model.safetensors"), weights | others, {"format": "mlx"})
    return folder


def write_late_model(folder: Path, name: str = "lfm2", **settings: Any) -> Path:
    """Save a model that makes vectors of 16 numbers of each token, as PyLate does."""
    write_vlm_encoder(folder, name)
    write_late_layer(folder, mx.random.normal((16, 32), key=mx.random.key(3)))
    written = {
        "query_prefix": QUERY_PREFIX,
        "document_prefix": DOCUMENT_PREFIX,
        "query_length": QUERY_TOKENS,
        "document_length": 40,
        "attend_to_expansion_tokens": False,
        "skiplist_words": [",", "."],
        **settings,
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(written))
    return folder


def write_late_layer(folder: Path, layer: mx.array) -> None:
    """Save a layer, (numbers, width), that makes a vector of each token, instead of a pooling."""
    dense = folder / "1_Dense"
    dense.mkdir()
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    modules = [{"path": path, "type": kind} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    identity = {"activation_function": "torch.nn.modules.linear.Identity", "bias": False}
    (dense / "config.json").write_text(json.dumps(identity))
    mx.save_safetensors(str(dense / "model.safetensors"), {"linear.weight": layer})
