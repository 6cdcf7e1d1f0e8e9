"""`python -m bench.beside`: a resident model's tokens while another model loads.

The load is held up until ten seconds have passed. Its imports and the reading of its weights
compete for the processor as they always do. Both measurements are repeated in turn.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from bench.machine import describe_machine
from bench.models import model_parser
from tests.support.faults import held_load, sitecustomize
from tests.support.gateway import Gateway
from tests.support.streams import open_stream

_TARGET: Final = 2.0
_PATIENCE_S: Final = 120.0
_LOAD_S: Final = 10.0


def _gaps_s(gateway: Gateway, held: Path, *, loading: bool) -> list[float]:
    """Seconds between the pieces of streams of the resident model, by a client's clock."""
    loader = threading.Thread(target=gateway.load, args=("other",))
    gaps: list[float] = []
    if loading:
        held.touch()
        loader.start()
    until = time.monotonic() + _LOAD_S
    while time.monotonic() < until or loader.is_alive():
        if time.monotonic() >= until:
            held.unlink(missing_ok=True)
        story = open_stream(
            gateway, "Tell me a story.", "resident", max_tokens=400, ignore_eos=True
        )
        gaps += story.join().gaps_s
    if loading:
        loader.join(_PATIENCE_S)
        gateway.order("unload", "other").raise_for_status()
    return gaps


def _p99_ms(gaps: list[float]) -> float:
    return statistics.quantiles(gaps, n=100)[98] * 1000


def main() -> int:
    parsed = model_parser("bench.beside", __doc__, rounds=3).parse_args()
    model = parsed.model.resolve()
    alone: list[float] = []
    beside: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        held = Path(name) / "held"
        gateway = Gateway(
            models=(f"{model}=resident", f"{model}=other"),
            environment=sitecustomize(Path(name), held_load(held)),
        )
        try:
            gateway.load("resident")
            for _ in range(parsed.rounds):
                alone += _gaps_s(gateway, held, loading=False)
                beside += _gaps_s(gateway, held, loading=True)
        finally:
            gateway.stop()
    print(f"{describe_machine()}; {parsed.rounds} rounds\n")
    print("| Between two pieces of a stream (ms) | median | p99 | longest |")
    print("| --- | ---: | ---: | ---: |")
    for title, gaps in (("undisturbed", alone), ("while another model loads", beside)):
        median, longest = statistics.median(gaps) * 1000, max(gaps) * 1000
        print(f"| {title} | {median:.1f} | {_p99_ms(gaps):.1f} | {longest:.1f} |")
    print(f"\nRatio of p99: {_p99_ms(beside) / _p99_ms(alone):.2f} (target {_TARGET}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
