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
from worker.mlx_lm import batching_trial
from worker.mlx_lm.batching_trial import takes_groups, try_batching
from worker.mlx_lm.caches import takes_padding_again


@pytest.mark.parametrize("trial", [takes_groups, takes_padding_again, try_batching])
def test_trial_takes_less_memory_than_the_shortest_sequence(
    trial: Callable[[Any], object], tmp_path: Path
) -> None:
    """A floor may have room for one sequence of one step, and a load has to stay within it."""
    model, _ = load_weights(shapes.wide_cache(tmp_path / "model"))
    mx.eval(model.parameters())
    room = measure(model).batch_bytes(1, CACHE_STEP_TOKENS)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    trial(model)
    assert mx.get_peak_memory() - before < room


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ("shared_keys", "answers otherwise when several are computed together"),
        ("counted_positions", "can't compute several together ("),
        ("chunked_attention", "can't be merged"),
    ],
)
@pytest.mark.parametrize("kind", [mx.float32, mx.bfloat16], ids=["float32", "bfloat16"])
def test_models_that_run_alone(shape: str, reason: str, kind: mx.Dtype, tmp_path: Path) -> None:
    model, _ = load_weights(getattr(shapes, shape)(tmp_path / "model"))
    model.set_dtype(kind)
    assert reason in (try_batching(model).fault or "")


@pytest.mark.parametrize(
    "shape",
    [
        *("sliding_window", "state_space", "padded_state", "hybrid", "linear_attention"),
        "full_attention",
    ],
)
def test_models_that_run_in_batches(shape: str, tmp_path: Path) -> None:
    model, _ = load_weights(getattr(shapes, shape)(tmp_path / "model"))
    assert try_batching(model).fault is None


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.3])
def test_rounding_of_two_rows_is_no_fault(
    noise: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a GPU, where two rows have other kernels than one."""
    model, _ = load_weights(shapes.full_attention(tmp_path / "model"))

    exactly = type(model).__call__

    def compute(own: Any, tokens: mx.array, cache: list[Any]) -> mx.array:
        logits: mx.array = exactly(own, tokens, cache=cache)
        if len(tokens) > 1:
            logits = logits + noise * mx.abs(logits).max() * mx.random.uniform(-1, 1, logits.shape)
        return logits

    monkeypatch.setattr(type(model), "__call__", compute)
    assert try_batching(model).fault is None


def test_a_failure_of_the_gpu_says_nothing_about_the_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, _ = load_weights(shapes.full_attention(tmp_path / "model"))

    def fail(*_: object) -> None:
        raise RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory.")

    monkeypatch.setattr(batching_trial, "_merged", fail)
    with pytest.raises(RuntimeError, match="Insufficient Memory"):
        try_batching(model)
