"""`python -m bench.keys`: what the check of an API key costs, and whether its time tells anything.

Tries of several kinds take turns in random order, at the code that every request goes through:
keys that share nothing with a real one, half of it, or all but its end. Should the time depend on
how much is right, the means of two kinds would differ: Welch's t says how surely. Beyond 4.5, as
dudect has it, they do.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from typing import Final

from bench.machine import describe_machine
from gateway.keys.access import shown_key
from gateway.keys.api_key import ApiKey, digest_of, new_secret
from gateway.keys.ring import KeyRing

_KEYS: Final = (1, 100)
_LEAKS: Final = 4.5
# The machine does other things, too: the slowest tries say nothing of the code.
_KEPT: Final = 0.95


def main() -> int:
    parser = argparse.ArgumentParser("bench.keys", description=__doc__)
    parser.add_argument("--tries", type=int, default=10_000, help="of each kind")
    tries = parser.parse_args().tries
    print(describe_machine())
    print(f"{tries} tries of each kind, of which the fastest {_KEPT:.0%} count.\n")
    print("| keys | kind | median (µs) | mean (µs) | t against nothing right |")
    print("| ---: | --- | ---: | ---: | ---: |")
    leaks = [_measure(keys, tries) for keys in _KEYS]
    worst = max(leaks)
    print(f"\nThe largest |t| is {worst:.1f}; {_LEAKS} would say that time tells something.")
    return 0


def _measure(keys: int, tries: int) -> float:
    """Prints a row for each kind; returns the largest |t|."""
    secrets = [new_secret() for _ in range(keys)]
    ring = KeyRing(
        [
            ApiKey(name=f"k{i}", digest=digest_of(s.encode()).hex(), created_at=0.0)
            for i, s in enumerate(secrets)
        ],
        new_secret(),
    )
    real = secrets[-1]
    kinds = {
        "nothing right": 0,
        "half of it right": len(real) // 2,
        "all but the end": len(real) - 3,
    }
    seconds: dict[str, list[float]] = {each: [] for each in kinds}
    order = [each for each in kinds for _ in range(tries)]
    random.Random(0).shuffle(order)
    for kind, headers in [(each, _headers(real, kinds[each])) for each in order]:
        began = time.perf_counter_ns()
        secret = shown_key(headers)
        held = ring.find(secret or b"")
        seconds[kind].append((time.perf_counter_ns() - began) / 1000)
        assert held is None
    kept = {each: sorted(times)[: int(len(times) * _KEPT)] for each, times in seconds.items()}
    worst = 0.0
    for kind, times in kept.items():
        t = _welch(times, kept["nothing right"])
        worst = max(worst, abs(t))
        print(
            f"| {keys} | {kind} | {statistics.median(times):.2f} | {statistics.fmean(times):.2f} "
            f"| {t:.1f} |"
        )
    return worst


def _headers(real: str, right: int) -> list[tuple[bytes, bytes]]:
    """Another try each time, so that no kind has a place in a table or a cache of its own; and made
    before anything is timed, by the same steps for all kinds.
    """
    while True:
        tried = "".join([real[:right], new_secret()[right:]]).encode()
        if tried != real.encode():
            return [(b"host", b"localhost"), (b"authorization", b"Bearer " + tried)]


def _welch(one: list[float], other: list[float]) -> float:
    spread = statistics.variance(one) / len(one) + statistics.variance(other) / len(other)
    return (statistics.fmean(one) - statistics.fmean(other)) / math.sqrt(spread) if spread else 0.0


if __name__ == "__main__":
    sys.exit(main())
