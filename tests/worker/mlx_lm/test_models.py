"""A head that files have beside the embedding is dropped where the embedding is the head."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from tests.support import shapes
from tests.worker.engines.test_architectures import COMMON
from worker.load.loading import classes_of, load
from worker.system.errors import ModelError

HEAD = "lm_head.weight"
_TEXT = {**COMMON, "rope_parameters": {"rope_theta": 10_000.0, "type": "default"}}
# With what each needs beside the common values, and with the head's name if it is another.
TIED: dict[str, dict[str, Any]] = {
    "baichuan_m1": {"sliding_window_layers": [0], "conv_window": 2},
    "cohere": {"layer_norm_bias": False, "logit_scale": 1.0},
    "cohere2": {"sliding_window_pattern": 2, "logit_scale": 1.0, "layer_norm_bias": False},
    "ernie4_5": {"use_bias": False},
    "exaone4": {"sliding_window_pattern": "LLLG", "rope_scaling": None},
    "falcon_h1": {},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 50.0},
    "granite": {
        "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    "internlm2": {"head": "output"},
    "internlm3": {},
    "llama": {},
    "minicpm": {
        "dim_model_base": 64,
        "num_hidden_layers": 2,
        "scale_depth": 1.0,
        "scale_emb": 1.0,
    },
    "olmo2": {},
    "olmo3": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "phi3": {},
    "qwen3_vl": {"text_config": {**_TEXT, "model_type": "qwen3_vl"}, "vision_config": {}},
    "starcoder2": {},
}


@pytest.mark.parametrize("name", TIED)
def test_a_spare_head_is_dropped(name: str) -> None:
    config = {**COMMON, "model_type": name, **TIED[name]}
    head = config.pop("head", "lm_head")
    kind, arguments = classes_of(config)
    model = kind(arguments.from_dict(config))
    weights = dict(tree_flatten(model.parameters()))
    # As files have it that are quantized.
    weights |= {f"{head}.{part}": mx.zeros((300, 8)) for part in ("weight", "scales", "biases")}
    model.load_weights(list(model.sanitize(weights).items()))


def _with_head(folder: Path, **changes: Any) -> Path:
    shutil.copytree(shapes.DEMO, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    path = str(folder / "model.safetensors")
    weights = mx.load(path)
    assert isinstance(weights, dict)
    mx.eval(weights)
    embedding = weights["model.embed_tokens.weight"]
    mx.save_safetensors(path, {**weights, HEAD: embedding + 1.0}, {"format": "mlx"})
    return folder


def _logits(folder: Path) -> mx.array:
    model = load(str(folder), lambda _done, _total: None, lambda: False).model
    logits: mx.array = model(mx.array([[5, 6, 7]]))
    return logits


def test_the_embedding_answers_if_it_is_the_head(tmp_path: Path) -> None:
    tied = _logits(_with_head(tmp_path / "tied"))
    assert mx.array_equal(tied, _logits(shapes.DEMO))
    untied = _logits(_with_head(tmp_path / "untied", tie_word_embeddings=False))
    assert not mx.allclose(tied, untied)


def test_a_head_of_its_own_is_not_dropped() -> None:
    """Where mlx-lm has no place for it, answers would be others."""
    config = {**COMMON, "model_type": "cohere", **TIED["cohere"], "tie_word_embeddings": False}
    kind, arguments = classes_of(config)
    model = kind(arguments.from_dict(config))
    weights = {**dict(tree_flatten(model.parameters())), HEAD: mx.zeros((300, 64))}
    with pytest.raises(ValueError, match="not in model"):
        model.load_weights(list(weights.items()))


def test_an_architecture_that_ends_the_program(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(shapes.DEMO, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "olmo"}))
    with pytest.raises(ModelError, match="a package that models of type olmo need") as caught:
        load(str(folder), lambda _done, _total: None, lambda: False)
    assert caught.value.permanent
