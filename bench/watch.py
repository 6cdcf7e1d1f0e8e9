"""`python -m bench.watch`: what it costs to look at the logits of each step.

One engine of a worker decodes in this process. It takes turns of some steps: with the look at the
logits, and without it. The costs are the median of the ratios of neighbouring turns. The first
steps of a turn aren't counted, since a step is begun before the one before it is read. On a CPU the
seconds are those of the processor, which other programs change less.

A second table has the look alone: how much longer it takes to draw the likeliest token from given
logits and to read it. That is the most that it can cost a step, since a GPU computes the look while
Python goes on. With `--shape 8b` the model is
of eight billion random weights in 4 bits, for a GPU.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from time import perf_counter, process_time
from typing import Any, Final

import mlx.core as mx

from bench.copying import EIGHT_BILLION
from bench.machine import describe_machine
from bench.models import random_qwen3
from gateway.config.model_folders import DEMO_FOLDER
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, measure
from worker.engines.sequence import Sequence
from worker.load.loading import load
from worker.mlx_lm import rows as decoding_rows
from worker.mlx_lm.step_watch import WatchedLogits, are_valid, watch

_PROMPT_TOKENS: Final = 32
_LEAST_ID: Final = 10
_LARGEST_ID: Final = 600
_UNCOUNTED: Final = 4
_ALONE: Final = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.watch", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--turns", type=int, default=10, metavar="N", help="a round, of each kind")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="a turn")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8], metavar="N")
    parser.add_argument("--shape", choices=["8b"], help="a large model, for a GPU")
    parsed = parser.parse_args()
    print(f"{describe_machine()}; medians of {parsed.turns * parsed.steps} steps\n")
    model = random_qwen3(EIGHT_BILLION) if parsed.shape else _demo()
    print("| rows | round | ms a step with the look | without | costs |")
    print("| --- | --- | --- | --- | --- |")
    for rows in parsed.rows:
        _measure(_decoding_engine(model, rows, parsed), rows, parsed)
    print("\n| rows | tokens | the look alone, us |")
    print("| --- | --- | --- |")
    vocabulary = model(mx.array([[1]])).shape[-1]
    for rows in parsed.rows:
        print(f"| {rows} | {vocabulary:,} | {_alone_us(rows, vocabulary):.1f} |")
    return 0


def _demo() -> Any:
    return load(str(DEMO_FOLDER), lambda _done, _total: None, lambda: False).model


def _decoding_engine(model: Any, rows: int, parsed: argparse.Namespace) -> BatchedEngine:
    """An engine whose rows all decode, as long as the measurement takes."""
    caches = Caches(model)
    room = CacheRoom(measure(caches.run, caches.make))
    engine = BatchedEngine(model, (), rows, room, guesses=False)
    steps = 2 * parsed.rounds * parsed.turns * (parsed.steps + _UNCOUNTED) + 2 * _UNCOUNTED + rows
    for index in range(rows):
        draw = random.Random(index)
        prompt = [draw.randrange(_LEAST_ID, _LARGEST_ID) for _ in range(_PROMPT_TOKENS)]
        engine.add(Sequence(f"row {index}", prompt, steps, None, ignore_eos=True))
    while len(engine.step()) < rows:
        pass
    return engine


def _measure(engine: BatchedEngine, rows: int, parsed: argparse.Namespace) -> None:
    costs = []
    for number in range(1, parsed.rounds + 1):
        pairs = [_pair(engine, parsed.steps, first=bool(pair % 2)) for pair in range(parsed.turns)]
        with_s, without_s = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
        # Steps become slower as rows grow, so only neighbours are compared.
        costs.append(statistics.median(one_s / other_s for one_s, other_s in pairs) - 1)
        print(
            f"| {rows} | {number} | {1e3 * with_s:.3f} | {1e3 * without_s:.3f} | {costs[-1]:+.2%} |"
        )
    print(f"| {rows} | median | | | {statistics.median(costs):+.2%} |")


def _alone_us(rows: int, vocabulary: int) -> float:
    logits = mx.random.normal((rows, vocabulary))
    mx.eval(logits)
    draws = [partial(_draw, logits, looks=looks) for looks in (True, False)]
    medians = [statistics.median(_draws(draw)) for _ in range(_ALONE) for draw in draws]
    return 1e6 * statistics.median(
        one_s - other_s for one_s, other_s in zip(medians[::2], medians[1::2], strict=True)
    )


def _draws(draw: Callable[[], None]) -> list[float]:
    seconds = []
    for _ in range(_ALONE):
        began_s = perf_counter()
        draw()
        seconds.append(perf_counter() - began_s)
    return seconds


def _draw(logits: mx.array, *, looks: bool) -> None:
    watched = watch(logits) if looks else _without_look(logits)
    tokens = mx.argmax(watched.logprobs, axis=-1)
    computed = (tokens, watched.levels) if looks else tokens
    mx.async_eval(computed)  # type: ignore[no-untyped-call]  # MLX's own stubs
    tokens.tolist()
    if looks:
        are_valid(watched.levels, watched.flat_level)


def _pair(engine: BatchedEngine, steps: int, *, first: bool) -> tuple[float, float]:
    """The median seconds of a step with the look, and without it. `first`: with it first."""
    medians = {}
    for looks in (first, not first):
        with _looking(engine, looks=looks):
            medians[looks] = statistics.median(_steps(engine, steps))
    return medians[True], medians[False]


def _steps(engine: BatchedEngine, count: int) -> list[float]:
    on_cpu = mx.default_device() == mx.cpu
    clock = process_time if on_cpu else perf_counter
    seconds = []
    for _ in range(_UNCOUNTED + count):
        began_s = clock()
        engine.step()
        seconds.append(clock() - began_s)
    return seconds[_UNCOUNTED:]


@contextmanager
def _looking(engine: BatchedEngine, *, looks: bool) -> Iterator[None]:
    """In the `with` block steps look at their logits, or compute what they did without that."""
    batches = [batch._generator._decoding for batch in engine._batches]
    names: Any = decoding_rows
    watch = names.watch
    for batch in batches:
        batch._watches = looks
    if not looks:
        names.watch = _without_look
    try:
        yield
    finally:
        names.watch = watch


@cache
def _no_levels(rows: int) -> mx.array:
    return mx.zeros((rows,))


def _without_look(logits: mx.array) -> WatchedLogits:
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return WatchedLogits(logprobs, _no_levels(logits.shape[0]), -math.inf)


if __name__ == "__main__":
    sys.exit(main())
