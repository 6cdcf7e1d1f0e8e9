"""Engines of a worker in the process that measures, which take turns of a few steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Final

import mlx.core as mx
from mlx_lm.generate import generation_stream

from worker.engines.batched_engine import BatchedEngine
from worker.engines.room import CacheRoom, CacheSizes
from worker.engines.sequence import Sequence as Row
from worker.load.loading import LoadedModel

TURN_STEPS: Final = 5


def decoding(model: LoadedModel, rows: Iterable[Row]) -> BatchedEngine:
    """An engine whose rows all decode."""
    rows = list(rows)
    engine = BatchedEngine(
        model.model, model.eos_token_ids, len(rows), CacheRoom(CacheSizes(0, 0, 1.0))
    )
    for row in rows:
        engine.add(row)
    while len(engine.step()) < len(rows):
        pass
    return engine


def steps_ms(engines: Sequence[BatchedEngine], turns: int) -> list[list[float]]:
    """Median steps of each engine by the clock, and in processor time, which other programs disturb
    less. The engines are closed then.
    """
    clocks = (time.perf_counter, time.process_time)
    times_s: list[list[list[float]]] = [[[] for _ in engines] for _ in clocks]
    for number in range(turns):
        # The first engine finds the processor's caches in another state.
        for index in range(len(engines))[:: 1 if number % 2 else -1]:
            began = [clock() for clock in clocks]
            for _ in range(TURN_STEPS):
                engines[index].step()
            # Else the step that it computes ahead would count for the next engine.
            mx.synchronize(generation_stream)
            for clock, times, before in zip(clocks, times_s, began, strict=True):
                times[index].append((clock() - before) / TURN_STEPS)
    for engine in engines:
        engine.close()
    return [[statistics.median(moment) * 1e3 for moment in times] for times in times_s]
