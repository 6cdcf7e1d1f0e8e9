"""`python -m bench.keys`: what the check of an API key costs, and whether its time tells anything.

Tries of several kinds take turns in random order, at the code that every request goes through:
keys that share nothing with a real one, half of it, or all but its end. Should the time depend on
how much is right, the means of two kinds would differ: Welch's t says how surely. Beyond 4.5, as
dudect has it, they do. A comparison that ends at the first wrong byte shows that it would be seen.
"""

from __future__ import annotations

import argparse
import functools
import math
import operator
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from bench.machine import describe_machine
from gateway.access.api_key import ApiKey, KeyRing, digest_of, new_secret
from gateway.access.caller import shown_key

_KEYS: Final = (1, 100)
_LEAKS: Final = 4.5
# The slowest tries are those that other programs disturbed.
_KEPT: Final = 0.95

Find = Callable[[bytes], object]


def main() -> int:
    parser = argparse.ArgumentParser("bench.keys", description=__doc__)
    parser.add_argument("--tries", type=int, default=10_000, help="of each kind")
    tries = parser.parse_args().tries
    print(describe_machine())
    print(f"{tries} tries of each kind, of which the fastest {_KEPT:.0%} count.\n")
    print("| check | kind | median (µs) | mean (µs) | t against nothing right |")
    print("| --- | --- | ---: | ---: | ---: |")
    leaks = []
    for keys in _KEYS:
        secrets = [new_secret() for _ in range(keys)]
        leaks.append(_measure(f"of {keys}", _ring(secrets).find, secrets[-1], tries))
    real = new_secret()
    shown = _measure("ends early", functools.partial(_ends_early, real.encode()), real, tries)
    print(f"\nThe largest |t| is {max(leaks):.1f}; {_LEAKS} would say that time tells something.")
    print(f"Of a comparison that ends at the first wrong byte it is {shown:.1f}.")
    return 0


def _ring(secrets: Sequence[str]) -> KeyRing:
    keys = [
        ApiKey(name=f"k{i}", digest=digest_of(s.encode()).hex(), created_at=0.0)
        for i, s in enumerate(secrets)
    ]
    return KeyRing(keys, new_secret())


def _ends_early(real: bytes, tried: bytes) -> object:
    """A check that leaks, to show that the measurement notices it."""
    return True if all(map(operator.eq, real, tried)) else None


def _measure(check: str, find: Find, real: str, tries: int) -> float:
    """Print a row for each kind; returns the largest |t|."""
    kinds = {
        "nothing right": 0,
        "half of it right": len(real) // 2,
        "all but the end": len(real) - 3,
    }
    micros: dict[str, list[float]] = {name: [] for name in kinds}
    order = [text for text in kinds for _ in range(tries)]
    random.Random(0).shuffle(order)
    # In one piece: else the place of a try in memory would depend on its kind, and be measured.
    tried = b"".join(_tried(real, kinds[name]) for name in order)
    for place, kind in enumerate(order):
        show = tried[place * len(real) : (place + 1) * len(real)]
        headers = [(b"host", b"localhost"), (b"authorization", b"Bearer " + show)]
        began = time.perf_counter_ns()
        secret = shown_key(headers)
        held = find(secret or b"")
        took = time.perf_counter_ns() - began
        # Only now: the look into this table isn't to be measured.
        micros[kind].append(took / 1000)
        assert held is None
    kept = {name: sorted(times)[: int(len(times) * _KEPT)] for name, times in micros.items()}
    worst = 0.0
    for kind, times in kept.items():
        t = _welch(times, kept["nothing right"])
        worst = max(worst, abs(t))
        print(
            f"| {check} | {kind} | {statistics.median(times):.2f} | {statistics.fmean(times):.2f} "
            f"| {t:.1f} |"
        )
    return worst


def _tried(real: str, right: int) -> bytes:
    """A new try each time, so that no kind has a place of its own in a table or a cache. All are
    made in the same steps, before any is timed.
    """
    while True:
        tried = "".join([real[:right], new_secret()[right:]]).encode()
        if tried != real.encode():
            return tried


def _welch(one: list[float], other: list[float]) -> float:
    spread = statistics.variance(one) / len(one) + statistics.variance(other) / len(other)
    return (statistics.fmean(one) - statistics.fmean(other)) / math.sqrt(spread) if spread else 0.0


if __name__ == "__main__":
    sys.exit(main())
