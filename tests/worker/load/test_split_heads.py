"""A head that mlx-vlm has split off a model is the same head in a folder of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")

from mlx_vlm.split_mtp import split_mtp

from tests.support.own_heads import OwnHead, write
from tests.support.shapes import DEMO
from worker.load.loading import LoadedModel, load
from worker.system.errors import ModelError

QWENS = ["qwen3_next", "qwen3_5", "qwen3_5_moe"]


def _demo_words(own: OwnHead, folder: Path, weights: dict[str, mx.array]) -> Path:
    write(folder, own.config, weights)
    for path in DEMO.glob("*token*"):
        shutil.copy(path, folder)
    return folder


def _with_vocabulary(kind: str, **options: Any) -> OwnHead:
    vocabulary = json.loads((DEMO / "config.json").read_text())["vocab_size"]
    return OwnHead(kind, vocab_size=vocabulary, **options)


def _split(own: OwnHead, root: Path, **options: Any) -> tuple[Path, Path]:
    """A model without its head, and the head that mlx-vlm has split off the published files."""
    text = {"rope_parameters": {"type": "default", "mrope_section": [2, 1, 1]}} | own.config
    published = write(root / "published", text, own.published())
    head = Path(split_mtp(str(published), str(root / "model-mtp"), **options))
    weights = {name: item for name, item in own.converted().items() if "mtp." not in name}
    return _demo_words(own, root / "model", weights), head


def _loaded(folder: Path, **options: Any) -> LoadedModel:
    return load(str(folder), lambda _done, _total: None, lambda: False, **options)


def _head_of(loaded: LoadedModel) -> dict[str, mx.array]:
    return dict(tree_flatten(loaded.model.mtp.parameters()))


def _same(one: dict[str, mx.array], other: dict[str, mx.array]) -> bool:
    return one.keys() == other.keys() and all(
        mx.allclose(one[name], other[name], atol=1e-6) for name in one
    )


@pytest.mark.parametrize("kind", QWENS)
def test_it_is_the_head_of_the_whole_files(kind: str, tmp_path: Path) -> None:
    own = _with_vocabulary(kind)
    model, head = _split(own, tmp_path)
    whole = _demo_words(own, tmp_path / "whole", own.converted())
    wanted = _head_of(_loaded(whole, own_head=True))
    assert _same(_head_of(_loaded(model, draft_path=str(head))), wanted)
    assert _same(_head_of(_loaded(model, own_head=True)), wanted), "it lies where mlx-vlm puts it"
    assert not hasattr(_loaded(model).model, "mtp")


def test_a_quantized_head_of_a_plain_model(tmp_path: Path) -> None:
    own = _with_vocabulary("qwen3_5")
    model, head = _split(own, tmp_path, q_bits=8, q_group_size=32)
    loaded = _loaded(model, draft_path=str(head))
    assert "scales" in loaded.model.mtp.joint
    states = mx.random.normal((1, 4, 64))
    assert mx.isfinite(loaded.model.mtp(states, states, None)).all()


def test_the_head_in_the_model_s_files_comes_first(tmp_path: Path) -> None:
    own = _with_vocabulary("qwen3_5")
    _, head = _split(own, tmp_path)
    mx.save_safetensors(str(head / "model.safetensors"), {"fc.weight": mx.zeros((64, 128))})
    whole = _demo_words(own, tmp_path / "model", own.converted())
    assert _head_of(_loaded(whole, own_head=True))["joint.weight"].any()


def test_a_head_of_another_model(tmp_path: Path) -> None:
    _, head = _split(_with_vocabulary("qwen3_5"), tmp_path)
    other = _with_vocabulary("qwen3_5", hidden_size=128).model
    weights = dict(tree_flatten(other.parameters()))
    folder = _demo_words(_with_vocabulary("qwen3_5", hidden_size=128), tmp_path / "model", weights)
    with pytest.raises(ModelError, match=r"The draft model: the head in .* doesn't fit the model"):
        _loaded(folder, draft_path=str(head))
    with pytest.raises(ModelError, match="doesn't fit the model"):
        _loaded(DEMO, draft_path=str(head))
    beside = _loaded(folder, own_head=True)
    assert not hasattr(beside.model, "mtp"), "nobody asked for it, so it is left out"


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3", "architectures": ["DFlashDraftModel"], "dflash_config": {}},
        {"model_type": "gemma4_assistant"},
        {"model_type": "glm_moe_dsa_mtp"},
        {"model_type": "llama", "architectures": ["EagleLlamaForCausalLM"]},
    ],
)
def test_drafters_of_other_kinds_are_refused(config: dict[str, Any], tmp_path: Path) -> None:
    folder = write(tmp_path / "drafter", config, {"fc.weight": mx.zeros((2, 2))})
    with pytest.raises(ModelError, match="a drafter of a kind that Bulkhead doesn't run"):
        _loaded(DEMO, draft_path=str(folder))
