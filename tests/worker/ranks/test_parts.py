"""What mlx-lm can't split, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.shapes import DEMO, sliding_window, splittable
from worker.load.loading import load_weights
from worker.ranks.group import split_model
from worker.system.errors import ModelError


class Group:
    """As much of a group of mlx.distributed as a split asks for."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return 0


def _refusal(folder: Path, size: int, split: Any) -> str:
    model, config = load_weights(folder)
    with pytest.raises(ModelError) as refused:
        split_model(model, config, Group(size), split)
    assert refused.value.permanent
    return refused.value.reason


def test_heads_that_the_ranks_do_not_divide() -> None:
    heads = json.loads((DEMO / "config.json").read_text())["num_key_value_heads"]
    assert _refusal(DEMO, 4, "tensor") == (
        'split: a qwen3 can\'t be split over 4 ranks by "tensor": its num_key_value_heads is '
        f"{heads}, which 4 doesn't divide"
    )


def test_a_model_that_mlx_lm_can_split_otherwise() -> None:
    assert _refusal(DEMO, 2, "pipeline") == (
        'split: mlx-lm can\'t split a qwen3 by "pipeline", but it can by "tensor".'
    )


def test_a_model_that_mlx_lm_cannot_split(tmp_path: Path) -> None:
    reason = _refusal(sliding_window(tmp_path / "model"), 2, "tensor")
    assert reason.startswith("mlx-lm can't split a gemma3_text over ranks. Those that it can")
    assert " llama, " in reason


def test_more_ranks_than_layers(tmp_path: Path) -> None:
    assert "must be positive" in _refusal(splittable(tmp_path / "m", "qwen3_moe"), 3, "pipeline")
