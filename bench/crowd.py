"""`python -m bench.crowd`: many streams at once, with default settings and enough free memory.

The model has small weights and large caches, 32 KB a token: Bulkhead must lend much memory before
all streams run. Bulkhead and mlx-lm's BatchGenerator take turns on the same prompts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.machine import describe_machine
from bench.models import HALF_BILLION, built_model, copy_without_end, model_parser
from bench.prompts import sampled
from bench.raw import Raw
from bench.results import FailedError, Generation
from bench.servers import BulkheadServer

_TTFT_TARGET: Final = 2.0
_RATE_TARGET: Final = 0.9
_SAMPLED_TARGET: Final = 0.95
_LENGTHS: Final = (20, 60, 200, 600, 4000)
# Ids that every tokenizer has.
_VOCABULARY: Final = range(10, 600)


def _short(chance: random.Random, streams: int) -> list[list[int]]:
    return [[chance.choice(_VOCABULARY) for _ in range(20)] for _ in range(streams)]


def _mixed(chance: random.Random, streams: int) -> list[list[int]]:
    """Prompts of unlike lengths. Only each eighth has the greatest length."""
    lengths = [_LENGTHS[-1] if i % 8 == 0 else chance.choice(_LENGTHS[:-1]) for i in range(streams)]
    return [[chance.choice(_VOCABULARY) for _ in range(length)] for length in lengths]


_SAMPLED: Final = "sampled"
_CASES: Final[dict[str, Callable[[random.Random, int], list[list[int]]]]] = {
    "greedy": _short,
    _SAMPLED: _short,
    "prompts of 20 to 4,000 tokens": _mixed,
}


def main() -> int:
    parser = model_parser(
        "bench.crowd", __doc__, rounds=5, model=None, shown="2 layers, 32 KB a token", for_gpu=True
    )
    parser.add_argument("--streams", type=int, default=32, metavar="N")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="for each stream")
    parser.add_argument("--case", choices=_CASES, action="append", help="measure these alone")
    parsed = parser.parse_args()
    chance = random.Random(1)
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bh-")))
        copy_without_end(parsed.model or _build(folder, parsed), folder / "model")
        raw = Raw(folder / "model")
        ends.callback(raw.stop)
        bulkhead = BulkheadServer(folder / "model", folder / "state", folder / "bulkhead.log")
        ends.callback(bulkhead.stop)
        print(f"{describe_machine()}; {parsed.streams} streams")
        print(f"of {parsed.tokens} tokens, medians of {parsed.rounds} rounds\n")
        print(
            "| | last first token (s) | raw | ratio | tokens/s | raw | ratio | of its greedy rate |"
        )
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        try:
            for name in parsed.case or _CASES:
                rounds = []
                # The first round loads the model, and doesn't count.
                for _ in range(parsed.rounds + 1):
                    prompts = _CASES[name](chance, parsed.streams)
                    turns = [(raw, prompts), (bulkhead, prompts)]
                    if name == _SAMPLED:
                        # Each stream has settings of its own. The last turn is greedy, to compare.
                        with_settings = sampled(prompts)
                        turns = [
                            (raw, with_settings),
                            (bulkhead, with_settings),
                            (bulkhead, prompts),
                        ]
                    rounds.append(
                        tuple(subject.generate(values, parsed.tokens) for subject, values in turns)
                    )
                    _show(name, rounds[-1])
                print(_row(name, rounds[1:]), flush=True)
        except FailedError as error:
            print(f"bench.crowd: {error}", file=sys.stderr)
            return 1
    print(
        f"\nTargets: first tokens within {_TTFT_TARGET} x, tokens/s at least {_RATE_TARGET} x, "
        f"sampled ones at least {_SAMPLED_TARGET} x the greedy ones."
    )
    return 0


def _build(folder: Path, parsed: argparse.Namespace) -> Path:
    if parsed.half_billion:
        return built_model(parsed, folder / "half-billion", HALF_BILLION)
    # This imports MLX, which takes hold of a GPU, and isn't needed for other models.
    from tests.support.shapes import wide_cache

    return wide_cache(folder / "wide")


def _show(name: str, generations: tuple[Generation, ...]) -> None:
    """Show the progress on stderr, since only the table may go to stdout."""
    shown = ", ".join(
        f"{run.tokens_per_s:.0f} tokens/s, first within {max(run.first_token_s):.2f} s"
        for run in generations
    )
    print(f"{name}: {shown}", file=sys.stderr)


def _row(name: str, rounds: list[tuple[Generation, ...]]) -> str:
    """A row of the table. Each round has the generations of mlx-lm and of Bulkhead, and of
    Bulkhead's greedy turn if the case is sampled.
    """
    subjects = list(zip(*rounds, strict=True))
    first = [statistics.median(max(run.first_token_s) for run in runs) for runs in subjects]
    rate = [statistics.median(run.tokens_per_s for run in runs) for runs in subjects]
    of_greedy = f"{rate[1] / rate[2]:.2f}" if len(rate) > 2 else ""
    return (
        f"| {name} | {first[1]:.2f} | {first[0]:.2f} | {first[1] / first[0]:.2f} "
        f"| {rate[1]:.0f} | {rate[0]:.0f} | {rate[1] / rate[0]:.2f} | {of_greedy} |"
    )


if __name__ == "__main__":
    sys.exit(main())
