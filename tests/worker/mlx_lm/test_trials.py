"""Trials of a model in a load: what they take beside its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from protocol.life import CACHE_STEP_TOKENS
from tests.support import shapes
from worker.engines.room import measure
from worker.load.loading import load_weights
from worker.mlx_lm.caches import takes_padding_again
from worker.mlx_lm.row_groups import takes_groups


@pytest.mark.parametrize("trial", [takes_groups, takes_padding_again])
def test_trial_takes_less_memory_than_the_shortest_sequence(
    trial: Callable[[Any], bool], tmp_path: Path
) -> None:
    """A floor may have room for one sequence of one step, and a load has to stay within it."""
    model, _ = load_weights(shapes.wide_cache(tmp_path / "model"))
    mx.eval(model.parameters())
    room = measure(model).batch_bytes(1, CACHE_STEP_TOKENS)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    trial(model)
    assert mx.get_peak_memory() - before < room
