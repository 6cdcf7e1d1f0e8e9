"""What a model of several ranks asks of the others, in prompts and in answers."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from tests.support.shapes import splittable
from tests.worker.ranks.test_parts import Group
from worker.load.loading import load_weights
from worker.ranks.group import split_model


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was still to be computed of what was handed over, call by call."""
    calls: list[list[str]] = []

    def all_sum(values: mx.array, *, group: Any) -> mx.array:
        calls.append(_pending(values))
        return values * group.size()

    monkeypatch.setattr(mx.distributed, "all_sum", all_sum)
    return calls


def _pending(values: mx.array) -> list[str]:
    graph = io.StringIO()
    mx.export_to_dot(graph, values)
    return re.findall(r'label ="(\w+)"', graph.getvalue())


def test_in_prompts_they_are_evaluated_by_themselves(
    tmp_path: Path, told: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, config = load_weights(splittable(tmp_path / "model", "llama"))
    split_model(model, config, Group(2), "tensor")
    mx.eval(model.parameters())
    evaluated: list[Any] = []
    evaluate = mx.eval

    def note(*arrays: Any) -> None:
        evaluated.extend(arrays)
        evaluate(*arrays)

    monkeypatch.setattr(mx, "eval", note)
    caches = make_prompt_cache(model)
    model(mx.array([[3, 4, 5, 6]]), cache=caches)
    # Two for each of two layers: before each what it takes, and behind it what it gives.
    assert told == [[]] * 4
    assert len(evaluated) == 8
    logits = model(mx.array([[7]]), cache=caches)
    assert len(evaluated) == 8
    assert len(told) == 8
    assert all(told[4:])
    # A whole prompt gives the same.
    again = model(mx.array([[3, 4, 5, 6, 7]]), cache=make_prompt_cache(model))
    assert mx.allclose(logits[:, -1], again[:, -1], atol=1e-4)


def test_splitting_twice_keeps_them_apart_once(tmp_path: Path, told: list[list[str]]) -> None:
    for _ in range(2):
        model, config = load_weights(splittable(tmp_path / str(len(told)) / str(_), "llama"))
        split_model(model, config, Group(2), "tensor")
    mx.eval(model.parameters())
    model(mx.array([[3, 4]]))
    assert told == [[]] * 4
