"""What a spare worker on a GPU does before it has a model; here on a CPU."""

from __future__ import annotations

import logging

import mlx.core as mx
import pytest

from worker.engines.batched_engine import BatchedEngine
from worker.engines.sequence import Token
from worker.runtime.warm import practise


def test_a_small_model_answers_and_nothing_stays_of_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, made = BatchedEngine.step, list[Token]()

    def watched(engine: BatchedEngine) -> list[Token]:
        tokens = step(engine)
        made.extend(tokens)
        return tokens

    monkeypatch.setattr(BatchedEngine, "step", watched)
    before_bytes = mx.get_active_memory()
    with caplog.at_level(logging.DEBUG, "worker"):
        practise()
    assert caplog.records == []
    # One answer in bfloat16, one in 4 bits.
    assert [token.finish_reason for token in made if token.finish_reason] == ["length", "length"]
    assert mx.get_active_memory() <= before_bytes + 1000
    assert mx.get_cache_memory() == 0
