"""Encoders of mlx-vlm make the vectors that mlx-vlm itself makes, together and alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")

from protocol.encoders import encoder_of, unserved
from tests.support.vlm_encoders import VLM_ENCODERS, own_model, write_vlm_encoder
from tests.worker.vectors.serving import Served, load_folder
from worker.system.errors import ModelError

TEXTS = ("A ship", "Once there was a ship that sailed far, far away", "Bread")


@pytest.mark.parametrize("name", VLM_ENCODERS)
def test_vectors_are_mlx_vlms(name: str, tmp_path: Path) -> None:
    served = Served(write_vlm_encoder(tmp_path / name, name))
    assert served.serving.abilities == ("embedding", "score")
    assert served.loaded.context_tokens == 128
    together = served.numbers(TEXTS)
    model = own_model(name)
    for text, vector in zip(TEXTS, together, strict=True):
        tokens = served.loaded.tokenizer.encode(text)
        own = model(mx.array([tokens]), attention_mask=mx.ones((1, len(tokens))))
        np.testing.assert_allclose(vector, np.array(own.text_embeds[0]), atol=1e-5)
        np.testing.assert_allclose(vector, served.numbers([text])[0], atol=1e-5)
    assert abs(together[0] @ together[1]) < 0.99


def test_the_folder_decides_on_the_pooling(tmp_path: Path) -> None:
    folder = write_vlm_encoder(tmp_path / "llama", "llama")
    config = json.loads((folder / "config.json").read_text())
    vectors = {}
    for pooling in ("avg", "cls", "last"):
        (folder / "config.json").write_text(json.dumps({**config, "pooling": pooling}))
        vectors[pooling] = Served(folder).numbers(TEXTS[:1])
    np.testing.assert_allclose(
        vectors["avg"], Served(folder).numbers(TEXTS[:1]) * 0 + vectors["avg"]
    )
    kinds = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {"path": f"{place}_{kind}" if place else "", "type": f"sentence_transformers.models.{kind}"}
        for place, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    for mode, pooling in (("mean", "avg"), ("cls", "cls"), ("lasttoken", "last")):
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))
        np.testing.assert_allclose(Served(folder).numbers(TEXTS[:1]), vectors[pooling], atol=1e-6)


def test_a_quantized_encoder_is_near(tmp_path: Path) -> None:
    from mlx import nn
    from mlx.utils import tree_flatten

    folder = write_vlm_encoder(tmp_path / "llama", "llama")
    whole = Served(folder).numbers(TEXTS)
    model = own_model("llama")
    nn.quantize(model, 32, 8)
    weights = {
        name.removeprefix("model."): array for name, array in tree_flatten(model.parameters())
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization"] = {"group_size": 32, "bits": 8}
    (folder / "config.json").write_text(json.dumps(config))
    assert (Served(folder).numbers(TEXTS) * whole).sum(axis=1).min() > 0.999


def _refusal(folder: Path, **changes: Any) -> str:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ModelError) as refused:
        load_folder(folder)
    assert refused.value.permanent
    return refused.value.reason


def test_models_that_the_layers_cannot_compute_are_refused(tmp_path: Path) -> None:
    windows = write_vlm_encoder(tmp_path / "windows", "ministral3")
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    assert "layers of the kind sliding_attention" in _refusal(
        windows, layer_types=kinds, sliding_window=4
    )
    inner = write_vlm_encoder(tmp_path / "inner", "lfm2")
    weights = dict(mx.load(str(inner / "model.safetensors")))
    weights["dense.weight"] = mx.zeros((16, 32))
    mx.save_safetensors(str(inner / "model.safetensors"), weights, {"format": "mlx"})
    assert _refusal(inner).endswith("in a folder of its own (1_Dense).")
    ranker = write_vlm_encoder(tmp_path / "ranker", "llama")
    head = "LlamaBidirectionalForSequenceClassification"
    assert head in _refusal(ranker, architectures=[head])


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = write_vlm_encoder(tmp_path / "llama", "llama")
    monkeypatch.setitem(sys.modules, "mlx_vlm.models.llama_bidirec", None)
    assert "[vision]" in _refusal(folder)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "colqwen2_5"}, "pictures of pages"),
        ({"model_type": "colidefics3"}, "pictures of pages"),
        ({"model_type": "qwen3_vl_embedding"}, "model_type is qwen3_vl"),
        ({"model_type": "llama_nemotron_vl", "bidirectional_attention": False}, "earlier tokens"),
    ],
)
def test_models_that_are_not_served_have_a_reason(config: dict[str, Any], words: str) -> None:
    assert words in str(unserved(config))


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"]},
        {"model_type": "ministral3"},
        {"model_type": "ministral3", "is_causal": True},
        {"model_type": "lfm2", "architectures": 7},
        {"model_type": "qwen3_vl"},
    ],
)
def test_models_that_write_text_are_no_encoders(config: dict[str, Any]) -> None:
    assert encoder_of(config) is None
    assert unserved(config) is None
