"""`python -m bench.swap`: from a request to the first token of an unloaded model, with and without
a spare worker, beside mlx-lm's reading of the weights alone.

Both gateways and processes that read take turns, so that noise meets all alike.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.machine import describe_machine
from bench.models import TWO_BILLION, build_model, model_parser
from bench.raw import WeightsReader
from tests.support.gateway import Gateway, chat_body, eventually
from tests.support.streams import Stream

_TARGET: Final = 0.5
_READ_TARGET: Final = 1.1
_PATIENCE_S: Final = 120.0


def _swap_s(gateway: Gateway, spares: int) -> float:
    """Unload, wait for spares, and ask: seconds until the first text."""
    gateway.order("unload", "model").raise_for_status()
    eventually(lambda: _at_rest(gateway, spares), _PATIENCE_S)
    body = chat_body("What is Bulkhead?", "model", stream=True, max_tokens=8)
    stream = Stream()
    began = time.monotonic()
    with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            stream.add_line(line)
            if stream.arrivals:
                return stream.arrivals[0] - began
    raise AssertionError("no text came")


def _at_rest(gateway: Gateway, spares: int) -> bool:
    """Whether all spares have ended their imports."""
    ready = sum(event["change"] == "ready" for event in gateway.events("spare"))
    return spares == 0 or ready == spares + len(gateway.events("adopt"))


def main() -> int:
    parser = model_parser("bench.swap", __doc__, rounds=7)
    parser.add_argument("--two-billion", action="store_true", help="4.8 GB of weights, for a GPU")
    parsed = parser.parse_args()
    with ExitStack() as ends:
        folder = parsed.model.resolve()
        if parsed.two_billion:
            folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bh-"))) / "model"
            _build_elsewhere(folder)
        gateways = []
        for spares in (0, 1):
            gateways.append(Gateway("--spare", str(spares), models=(f"{folder}=model",)))
            ends.callback(gateways[-1].stop)
        # The first round is thrown away: in it files are read and kernels compiled.
        rounds = []
        for number in range(parsed.rounds + 1):
            swaps = [_swap_s(gateway, spares) for spares, gateway in enumerate(gateways)]
            rounds.append((*swaps, *_bare_s(folder)))
            print(number, *(f"{number:.2f} s" for number in rounds[-1]), file=sys.stderr)
        del rounds[0]
    medians = (statistics.median(pair) for pair in zip(*rounds, strict=True))
    without, with_spare, first, again = medians
    ratios = sorted(spare / none for none, spare, *_ in rounds)
    print(f"{describe_machine()}; medians of {len(rounds)} rounds\n")
    print("| From request to first text | seconds |\n| --- | ---: |")
    print(f"| without a spare | {without:.2f} |\n| with a spare | {with_spare:.2f} |")
    print(f"| the weights alone, by mlx-lm in a new process | {first:.2f} |")
    print(f"| again in that process | {again:.2f} |")
    ratio = statistics.median(ratios)
    print(f"\nRatio {ratio:.2f}, from {ratios[0]:.2f} to {ratios[-1]:.2f} (target {_TARGET}).")
    print(
        f"With a spare against the weights alone: {with_spare / first:.2f} in a new process, "
        f"{with_spare / again:.2f} in one that has read them before (target {_READ_TARGET})."
    )
    return 0


def _bare_s(model: Path) -> tuple[float, float]:
    """Seconds of two readings by one process."""
    reader = WeightsReader(model)
    try:
        return reader.read_s(), reader.read_s()
    finally:
        reader.stop()


def _build_elsewhere(folder: Path) -> None:
    """Build the model in a process of its own, which gives the memory back."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=build_model, args=(folder, TWO_BILLION))
    process.start()
    process.join()


if __name__ == "__main__":
    sys.exit(main())
