"""`python -m bench.stall`: a long prompt arrives while others stream, and short ones behind it.

The worker's engine alone, in this process, with default settings: gaps in running streams, and how
long first tokens take.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import arguments
from bench.machine import describe_machine
from bench.tiny import build_half_billion_model, build_small_model
from gateway.config.models import DEMO_FOLDER

_STREAMS: Final = 8
_LONG_TOKENS: Final = 16_000
_SHORT: Final = 20
_SHORT_TOKENS: Final = 20
_STALL_S: Final = 0.1
_TTFT_TARGET: Final = 1.5
_WAIT_TARGET_S: Final = 1.0


class Round(NamedTuple):
    """Seconds."""

    step_s: float
    worst_gap_s: float
    idle_first_s: float
    busy_first_s: float
    short_first_s: float


def main() -> int:
    parser = arguments.parser(
        "bench.stall", __doc__, rounds=3, model=None, shown="2 layers of one head"
    )
    parser.add_argument("--half-billion", action="store_true", help="a model for a GPU")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bh-") as folder:
        build = build_half_billion_model if parsed.half_billion else build_small_model
        model = parsed.model or Path(folder) / "model"
        if parsed.model is None:
            build(DEMO_FOLDER, model)
        rounds = _measure(model, parsed)
    machine = describe_machine()
    print(f"{machine.processor}, {machine.cores} cores, {machine.mlx}; {len(rounds)} rounds\n")
    medians = Round(*(statistics.median(each) for each in zip(*rounds, strict=True)))
    gap_target_s = _STALL_S + medians.step_s
    ratio = medians.busy_first_s / medians.idle_first_s
    print("| | measured | target |\n| --- | ---: | ---: |")
    print(f"| a step of {_STREAMS} streams (ms) | {medians.step_s * 1e3:.1f} | |")
    print(
        f"| worst gap beside {_LONG_TOKENS} tokens of prompt (ms) "
        f"| {medians.worst_gap_s * 1e3:.0f} | {gap_target_s * 1e3:.0f} |"
    )
    print(f"| first token of that prompt alone (s) | {medians.idle_first_s:.2f} | |")
    print(
        f"| beside {_STREAMS} streams (s) | {medians.busy_first_s:.2f} "
        f"| {_TTFT_TARGET * medians.idle_first_s:.2f} (x {_TTFT_TARGET}; found x {ratio:.2f}) |"
    )
    print(
        f"| last first token of {_SHORT} short prompts behind it (s) "
        f"| {medians.short_first_s:.2f} | {_WAIT_TARGET_S} |"
    )
    return 0


def _measure(model: Path, parsed: argparse.Namespace) -> list[Round]:
    # Here, not above: to import MLX takes hold of a GPU.
    from worker.engines.batched import BatchedEngine
    from worker.engines.room import Room, measure
    from worker.loading import load
    from worker.warm import warm

    loaded = load(str(model), lambda _done, _total: None, lambda: False)
    engine = BatchedEngine(
        loaded.model, [], 32, Room(measure(loaded.model)), loaded.weight_bytes, stall_s=_STALL_S
    )
    warm(engine, _LONG_TOKENS, loaded.vocabulary)
    chance = random.Random(1)
    rounds = []
    for number in range(parsed.rounds + 1):
        rounds.append(_round(engine, chance))
        print(f"{number}: {rounds[-1]}", file=sys.stderr)
    return rounds[1:]


def _round(engine: Any, chance: random.Random) -> Round:
    alone = _Run(engine, chance)
    alone.add("long", _LONG_TOKENS, 2)
    alone.until("long")
    alone.end()
    run = _Run(engine, chance)
    for number in range(_STREAMS):
        run.add(f"stream {number}", 30, 4000)
    run.steps(30)
    step_s = statistics.median(run.gaps_s("stream 0"))
    run.forget_gaps()
    run.add("long", _LONG_TOKENS, 2)
    run.steps(2)
    for number in range(_SHORT):
        run.add(f"short {number}", _SHORT_TOKENS, 8)
    run.until("long")
    worst_s = max(max(run.gaps_s(f"stream {number}")) for number in range(_STREAMS))
    for number in range(_SHORT):
        run.until(f"short {number}")
    run.end()
    return Round(
        step_s,
        worst_s,
        alone.first_s("long"),
        run.first_s("long"),
        max(run.first_s(f"short {number}") for number in range(_SHORT)),
    )


class _Run:
    def __init__(self, engine: Any, chance: random.Random) -> None:
        self._engine = engine
        self._chance = chance
        self._added_at: dict[str, float] = {}
        self._times: dict[str, list[float]] = {}

    def add(self, name: str, tokens: int, answer: int) -> None:
        from worker.engines.sequence import Sequence

        ids = [self._chance.randrange(10, 600) for _ in range(tokens)]
        self._times[name] = []
        self._added_at[name] = time.perf_counter()
        self._engine.add(Sequence(name, ids, answer, None, ignore_eos=True))

    def steps(self, count: int) -> None:
        for _ in range(count):
            tokens = self._engine.step()
            now = time.perf_counter()
            for token in tokens:
                self._times[token.request_id].append(now)

    def until(self, name: str) -> None:
        while not self._times[name]:
            self.steps(1)

    def end(self) -> None:
        self._engine.remove(list(self._times))
        self.steps(1)

    def forget_gaps(self) -> None:
        """From the last token of each on."""
        self._times = {name: times[-1:] for name, times in self._times.items()}

    def first_s(self, name: str) -> float:
        return self._times[name][0] - self._added_at[name]

    def gaps_s(self, name: str) -> list[float]:
        times = self._times[name]
        return [b - a for a, b in itertools.pairwise(times)]


if __name__ == "__main__":
    sys.exit(main())
