"""`python -m bench.lengths`: rows of unlike length in one batch, and rows that join and leave.

A long row decodes beside three short ones: in groups of one batch, and in batches that take turns,
as models do whose attention takes no groups. Its tokens a second are compared with those that it
makes alone; each pass reads all weights. Then rows join and leave a large batch. The rows begin
with random caches in place of prompts. Engines take turns, and the first round isn't counted. With
`--shape 8b` the model has eight billion weights in 4 bits, for a GPU.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import mlx.core as mx
from mlx_lm.generate import generation_stream

from bench.copying import EIGHT_BILLION
from bench.machine import describe_machine
from bench.models import random_qwen3
from worker.engines.batched_engine import BatchedEngine
from worker.engines.room import CacheRoom, measure
from worker.engines.sequence import Sequence as Row
from worker.mlx_lm.caches import make_caches
from worker.mlx_lm.row_groups import ONE_GROUP
from worker.prompt_cache.cache import RestoredCaches

# Much attention and little else, since a CPU shares no weights between rows.
_SMALL: Final = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 4096,
}
_LONG: Final = "long"
_MOST_TOKENS: Final = 100_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.lengths", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--steps", type=int, default=16, metavar="N", help="of a turn")
    parser.add_argument("--long", type=int, default=4000, metavar="TOKENS")
    parser.add_argument("--short", type=int, default=300, metavar="TOKENS")
    parser.add_argument("--rows", type=int, default=128, metavar="N", help="of the large batch")
    parser.add_argument("--shape", choices=["8b"], help="a large model, for a GPU")
    parsed = parser.parse_args()
    print(f"{describe_machine()}; medians of {parsed.rounds - 1} rounds\n")
    sizes = EIGHT_BILLION if parsed.shape else _SMALL
    model = random_qwen3(sizes, quantized=parsed.shape is not None)
    _print_beside(model, parsed)
    _print_changes(model, parsed)
    return 0


def _print_beside(model: Any, parsed: argparse.Namespace) -> None:
    long = _row(_LONG, parsed.long)
    short = [_row(str(index), parsed.short) for index in range(3)]
    engines = {
        "alone": _decoding(model, [long]),
        "beside three, in groups": _decoding(model, [long, *short]),
        "beside three, in turns": _decoding(model, [long], short),
    }
    rates: dict[str, list[float]] = {name: [] for name in engines}
    passes = dict.fromkeys(engines, 0)
    for number in range(parsed.rounds):
        for name in list(engines)[:: 1 if number % 2 else -1]:
            rate, passes[name] = _long_rate(engines[name], parsed.steps)
            rates[name].append(rate)
    alone = statistics.median(rates["alone"][1:])
    print(f"| {parsed.long} tokens, beside {parsed.short} | tokens/s | of alone | passes a token |")
    print("| --- | ---: | ---: | ---: |")
    for name, values in rates.items():
        rate = statistics.median(values[1:])
        cells = f"{rate:.1f} | {rate / alone:.2f} | {passes[name] / parsed.steps:.0f}"
        print(f"| {name} | {cells} |", flush=True)
    for engine in engines.values():
        engine.close()


def _print_changes(model: Any, parsed: argparse.Namespace) -> None:
    engine = _decoding(model, [_row(str(index), 32) for index in range(parsed.rows)])
    steps: dict[str, list[float]] = {"nobody joins or leaves": [], "a row leaves": []}
    steps["a row joins"] = []
    for number in range(parsed.rounds):
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for index in range(parsed.steps):
            seconds["nobody joins or leaves"].append(_timed(engine, 2))
            engine.remove([_first(engine)])
            seconds["a row leaves"].append(_timed(engine, 1))
            engine.add(_row(f"{number} {index}", 32))
            engine.step()
            seconds["a row joins"].append(_timed(engine, 1))
        for name, values in seconds.items():
            steps[name].append(statistics.median(values))
    print(f"\n| a step of {parsed.rows} rows | ms |")
    print("| --- | ---: |")
    for name, step in steps.items():
        print(f"| {name} | {statistics.median(step[1:]) * 1000:.1f} |")
    engine.close()


def _row(name: str, tokens: int) -> Row:
    draw = random.Random(name)
    prompt = [draw.randrange(10, 4000) for _ in range(tokens)]
    return Row(name, prompt, _MOST_TOKENS, None, ignore_eos=True)


def _decoding(model: Any, *batches: Sequence[Row]) -> BatchedEngine:
    """An engine whose rows all decode, without guesses. Several batches take turns."""
    most_rows = sum(len(rows) for rows in batches)
    engine = BatchedEngine(model, (), most_rows, CacheRoom(measure(model)), guesses=False)
    if len(batches) > 1:
        engine._computer, engine._grouping = None, ONE_GROUP
    dtype = model.model.norm.weight.dtype
    for rows in batches:
        batch = engine._open()
        for tokens, alike in groupby(rows, key=lambda values: len(values.token_ids) - 1):
            shape = (1, model.args.num_key_value_heads, tokens, model.args.head_dim)
            for values in alike:
                caches = make_caches(model)
                for cache in caches:
                    cache.update_and_fetch(*(mx.random.normal(shape, dtype) for _ in range(2)))
                batch.insert(values, len(batch) + 1, RestoredCaches(caches, tokens))
            while batch.prefilling:
                engine.step()
    return engine


def _long_rate(engine: BatchedEngine, tokens: int) -> tuple[float, int]:
    """Tokens a second of the long row, and the passes of the model."""
    mx.synchronize(generation_stream)
    began, made, steps = time.perf_counter(), 0, 0
    while made < tokens:
        made += sum(token.request_id == _LONG for token in engine.step())
        steps += 1
    mx.synchronize(generation_stream)
    return tokens / (time.perf_counter() - began), steps


def _timed(engine: BatchedEngine, steps: int) -> float:
    """Seconds of a step, with the one that it begins."""
    mx.synchronize(generation_stream)
    began = time.perf_counter()
    for _ in range(steps):
        engine.step()
    mx.synchronize(generation_stream)
    return (time.perf_counter() - began) / steps


def _first(engine: BatchedEngine) -> str:
    return next(row.sequence.request_id for batch in engine._batches for row in batch.rows)


if __name__ == "__main__":
    sys.exit(main())
