"""Every architecture of mlx-lm can be looked at, and is the same after each repair was tried."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from tests.support import shapes
from tests.support.architectures import NEED_METAL, TINY
from tests.worker.load.test_architectures import CRASHES
from worker.errands.check.files import compare
from worker.errands.check.repairs import (
    head_repairs,
    layer_repairs,
    position_repairs,
    whole_repairs,
)
from worker.errands.check.suspects import suspects
from worker.errands.check.weights import matrices
from worker.load.loading import load_weights
from worker.mlx_lm.caches import make_caches

_TOKENS = mx.array([[1, 2, 3, 4]])


def logits(model: object) -> mx.array:
    computed: mx.array = model(_TOKENS, cache=make_caches(model))  # type: ignore[operator]
    mx.eval(computed)
    return computed


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", [name for name in TINY if name not in (*NEED_METAL, CRASHES)]
)
def test_a_model_is_the_same_after_each_repair(architecture: str, tmp_path: Path) -> None:
    folder = shapes.write(tmp_path / "model", {"model_type": architecture, **TINY[architecture]})
    wanted, had = compare(folder)
    assert wanted == had
    model, config = load_weights(folder)
    width = int(config.get("hidden_size", 64))
    suspects(list(matrices(model, width)), model)
    first = logits(model)  # Some architectures clip their weights when they run.
    before = dict(tree_flatten(model.parameters()))
    layers = [
        repair
        for number, layer in enumerate(model.layers)
        for repair in layer_repairs(model, layer, f"layer {number}")
    ]
    for repair in [*whole_repairs(model), *head_repairs(model), *position_repairs(model), *layers]:
        with repair.apply():
            logits(model)
    after = dict(tree_flatten(model.parameters()))
    assert before.keys() == after.keys()
    assert all(mx.array_equal(before[name], after[name], equal_nan=True) for name in before)
    assert mx.array_equal(first, logits(model), equal_nan=True)
