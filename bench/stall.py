"""`python -m bench.stall`: a long prompt arrives while others stream, and short ones behind it.

The worker's engine alone, in this process, with default settings: gaps in running streams, and the
time to first tokens. Beside the clock's time it shows this process's CPU time: where MLX computes
on the CPU, other programs took the difference. The same streams without a prompt show the effect of
other programs on gaps.
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

from bench.machine import describe_machine
from bench.models import SMALL, built_model, model_parser

_STREAMS: Final = 8
_LONG_TOKENS: Final = 16_000
_SHORT: Final = 20
_SHORT_TOKENS: Final = 20
_STALL_S: Final = 0.1
_TTFT_TARGET: Final = 1.5
_WAIT_TARGET_S: Final = 1.0
# So long the streams run alone.
_UNDISTURBED_S: Final = 5.0


class Time(NamedTuple):
    """Seconds by the clock, and of this process's threads."""

    clock_s: float
    cpu_s: float

    def since(self, earlier: Time) -> Time:
        return Time(self.clock_s - earlier.clock_s, self.cpu_s - earlier.cpu_s)


class StallTimes(NamedTuple):
    step: Time
    undisturbed_gap: Time
    worst_gap: Time
    idle_first: Time
    busy_first: Time
    short_first: Time


def main() -> int:
    parser = model_parser(
        "bench.stall", __doc__, rounds=3, model=None, shown="2 layers of one head", for_gpu=True
    )
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bh-") as folder:
        model = parsed.model or built_model(parsed, Path(folder) / "model", SMALL)
        rounds = _measure(model, parsed)
    print(f"{describe_machine()}; {len(rounds)} rounds\n")
    medians = StallTimes(*(_median(pair) for pair in zip(*rounds, strict=True)))
    ratio = medians.busy_first.clock_s / medians.idle_first.clock_s
    print("| | by the clock | CPU time | target |\n| --- | ---: | ---: | ---: |")
    _print_row(f"a step of {_STREAMS} streams (ms)", medians.step, 1e3, "")
    _print_row("worst gap without a prompt (ms)", medians.undisturbed_gap, 1e3, "")
    gap_target_ms = (_STALL_S + medians.step.clock_s) * 1e3
    beside = f"worst gap beside {_LONG_TOKENS} tokens of prompt (ms)"
    _print_row(beside, medians.worst_gap, 1e3, f"{gap_target_ms:.0f}")
    _print_row("first token of that prompt alone (s)", medians.idle_first, 1.0, "")
    first_target = f"x {_TTFT_TARGET}; found x {ratio:.2f}"
    _print_row(f"beside {_STREAMS} streams (s)", medians.busy_first, 1.0, first_target)
    behind = f"last first token of {_SHORT} short prompts behind it (s)"
    _print_row(behind, medians.short_first, 1.0, str(_WAIT_TARGET_S))
    return 0


def _median(times: tuple[Time, ...]) -> Time:
    return Time(*(statistics.median(pair) for pair in zip(*times, strict=True)))


def _print_row(name: str, time_: Time, unit: float, target: str) -> None:
    clock, cpu = (f"{number * unit:.{2 if unit == 1 else 1}f}" for number in time_)
    print(f"| {name} | {clock} | {cpu} | {target} |")


def _measure(model: Path, parsed: argparse.Namespace) -> list[StallTimes]:
    # Not above: the import of MLX takes hold of a GPU.
    from worker.engines.batched_engine import BatchedEngine
    from worker.engines.room import CacheRoom, measure
    from worker.load.loading import load
    from worker.runtime.warm import WarmUp

    loaded = load(str(model), lambda _done, _total: None, lambda: False)
    room = CacheRoom(measure(loaded.model))
    engine = BatchedEngine(loaded.model, [], 32, room, stall_s=_STALL_S)
    WarmUp(engine, None, room, _LONG_TOKENS, loaded.vocabulary).start(awaited=False)
    chance = random.Random(1)
    rounds = []
    for number in range(parsed.rounds + 1):
        rounds.append(_round(engine, chance))
        print(f"{number}: {rounds[-1]}", file=sys.stderr)
    return rounds[1:]


def _round(engine: Any, chance: random.Random) -> StallTimes:
    alone = _EngineRun(engine, chance)
    alone.add("long", _LONG_TOKENS, 2)
    alone.until("long")
    alone.end()
    run = _EngineRun(engine, chance)
    for number in range(_STREAMS):
        run.add(f"stream {number}", 30, 4000)
    run.steps(30)
    run.forget_gaps()
    run.for_(_UNDISTURBED_S)
    step, undisturbed = _median(tuple(run.gaps("stream 0"))), run.worst_gap()
    run.forget_gaps()
    run.add("long", _LONG_TOKENS, 2)
    # Half of its time: each of its tokens takes longer than the one before.
    run.for_(alone.first("long").clock_s / 2)
    for number in range(_SHORT):
        run.add(f"short {number}", _SHORT_TOKENS, 8)
    run.until("long")
    worst = run.worst_gap()
    for number in range(_SHORT):
        run.until(f"short {number}")
    run.end()
    shorts = [run.first(f"short {number}") for number in range(_SHORT)]
    return StallTimes(
        step, undisturbed, worst, alone.first("long"), run.first("long"), _highest(shorts)
    )


def _highest(times: list[Time]) -> Time:
    return Time(*(max(pair) for pair in zip(*times, strict=True)))


class _EngineRun:
    """Sequences in an engine, and the times of their tokens."""

    def __init__(self, engine: Any, chance: random.Random) -> None:
        self._engine = engine
        self._chance = chance
        self._added_at: dict[str, Time] = {}
        self._times: dict[str, list[Time]] = {}

    def add(self, name: str, tokens: int, answer: int) -> None:
        from worker.engines.sequence import Sequence

        ids = [self._chance.randrange(10, 600) for _ in range(tokens)]
        self._times[name] = []
        self._added_at[name] = _now()
        self._engine.add(Sequence(name, ids, answer, None, ignore_eos=True))

    def steps(self, count: int) -> None:
        for _ in range(count):
            tokens = self._engine.step()
            now = _now()
            for token in tokens:
                self._times[token.request_id].append(now)

    def for_(self, seconds: float) -> None:
        began = _now()
        while _now().since(began).clock_s < seconds:
            self.steps(1)

    def until(self, name: str) -> None:
        while not self._times[name]:
            self.steps(1)

    def end(self) -> None:
        self._engine.remove(list(self._times))
        self.steps(1)

    def forget_gaps(self) -> None:
        """Keep only the last token of each."""
        self._times = {name: times[-1:] for name, times in self._times.items()}

    def first(self, name: str) -> Time:
        return self._times[name][0].since(self._added_at[name])

    def gaps(self, name: str) -> list[Time]:
        return [b.since(a) for a, b in itertools.pairwise(self._times[name])]

    def worst_gap(self) -> Time:
        """The longest gap of the streams by the clock, and the most CPU time of one, which may be
        of another.
        """
        names = [moment for moment in self._times if moment.startswith("stream")]
        return _highest([gap for name in names for gap in self.gaps(name)])


def _now() -> Time:
    return Time(time.perf_counter(), time.process_time())


if __name__ == "__main__":
    sys.exit(main())
