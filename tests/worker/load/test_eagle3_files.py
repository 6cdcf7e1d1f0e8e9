"""EAGLE-3 is loaded from both forms of its files. What isn't known is refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from tests.support import shapes
from tests.support.eagles import Weights, as_speculators, config_of, random_weights
from tests.support.own_heads import write
from worker.engines.row_computer import make_draft
from worker.load.loading import LoadedModel, load
from worker.mlx_lm.eagle3 import Eagle3
from worker.system.errors import ModelError


@pytest.fixture(scope="module")
def drafter() -> tuple[dict[str, Any], Weights]:
    """For the demo model."""
    demo = _loaded()
    config = config_of(32, demo.vocabulary, target_hidden_size=demo.config["hidden_size"])
    config["draft_vocab_size"] = 90
    config["rope_theta"] = None
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 500.0}
    return config, random_weights(config)


def _loaded(draft: Path | None = None) -> LoadedModel:
    path = None if draft is None else str(draft)
    return load(str(shapes.DEMO), lambda _done, _total: None, lambda: False, draft_path=path)


def _weights_in(eagle: Any) -> Weights:
    return dict(tree_flatten(eagle.parameters()))


def test_both_forms_are_loaded(drafter: tuple[dict[str, Any], Weights], tmp_path: Path) -> None:
    one = _loaded(write(tmp_path / "authors", *drafter))
    layers = [2, 2, 1]
    other = _loaded(write(tmp_path / "speculators", *as_speculators(*drafter, layers)))
    assert isinstance(one.draft, Eagle3)
    ours, theirs = _weights_in(one.draft), _weights_in(other.draft)
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)
    assert ours["fc.weight"].any()
    assert one.draft.midlayer.self_attn.rope.base == other.draft.midlayer.self_attn.rope.base == 500
    assert other.draft.layers_of(other.model) == layers
    make_draft(other.model, other.draft, 3)
    model_bytes = sum(item.nbytes for item in _weights_in(other.model).values())
    assert other.weight_bytes == model_bytes + sum(item.nbytes for item in theirs.values())


def _lack(name: str) -> Callable[[dict[str, Any], Weights], object]:
    return lambda _config, weights: weights.pop(name)


FAULTS: dict[str, tuple[Callable[[dict[str, Any], Weights], object], str]] = {
    "no head": (_lack("lm_head.weight"), "lm_head.weight"),
    "no table": (_lack("d2t"), "d2t"),
    "a second layer": (
        lambda _, weights: weights.update({"layers.1.mlp.up_proj.weight": mx.zeros((2, 2))}),
        "layers.1.mlp.up_proj.weight",
    ),
    "another shape": (
        lambda config, _: config.update(intermediate_size=64),
        "midlayer.mlp.",
    ),
    "another activation": (
        lambda config, _: config.update(hidden_act="gelu"),
        "hidden_act is gelu",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_unknown_parts_are_refused(
    name: str, drafter: tuple[dict[str, Any], Weights], tmp_path: Path
) -> None:
    spoil, message = FAULTS[name]
    config, weights = map(dict, drafter)
    spoil(config, weights)
    with pytest.raises(ModelError, match="The draft model: ") as raised:
        _loaded(write(tmp_path / "drafter", config, weights))
    assert message in raised.value.reason
    assert "\n" not in raised.value.reason


def test_files_of_pytorch_are_refused(
    drafter: tuple[dict[str, Any], Weights], tmp_path: Path
) -> None:
    folder = write(tmp_path / "drafter", *drafter)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="PyTorch's files, which MLX doesn't read"):
        _loaded(folder)
