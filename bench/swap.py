"""`python -m bench.swap`: from a request to the first token of an unloaded model, with and without
a spare worker.

Both gateways run side by side and take turns, so that noise meets both alike.
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import ExitStack
from typing import Final

from bench import arguments
from bench.machine import describe_machine
from tests.support.gateway import Gateway, chat_body, eventually
from tests.support.streams import Stream

_TARGET: Final = 0.5
_PATIENCE_S: Final = 120.0


def _swap_s(gateway: Gateway, spares: int) -> float:
    """Unload, wait for rest, and ask: seconds until the first text."""
    gateway.order("unload", "model").raise_for_status()
    eventually(lambda: _at_rest(gateway, spares), _PATIENCE_S)
    body = chat_body("What is Bulkhead?", "model", stream=True, max_tokens=8)
    stream = Stream()
    began = time.monotonic()
    with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            stream.take(line)
            if stream.arrivals:
                return stream.arrivals[0] - began
    raise AssertionError("no text came")


def _at_rest(gateway: Gateway, spares: int) -> bool:
    """The spare, if there is to be one, has ended its imports."""
    ready = sum(each["change"] == "ready" for each in gateway.events("spare"))
    return spares == 0 or ready == spares + len(gateway.events("adopt"))


def main() -> int:
    parsed = arguments.parser("bench.swap", __doc__, rounds=7).parse_args()
    model = f"{parsed.model.resolve()}=model"
    with ExitStack() as ends:
        gateways = []
        for spares in (0, 1):
            gateways.append(Gateway("--spare", str(spares), models=(model,)))
            ends.callback(gateways[-1].stop)
        rounds = [
            [_swap_s(each, spares) for spares, each in enumerate(gateways)]
            for _ in range(parsed.rounds)
        ]
    without, with_spare = (statistics.median(each) for each in zip(*rounds, strict=True))
    ratios = sorted(spare / none for none, spare in rounds)
    machine = describe_machine()
    print(f"{machine.processor}, {machine.cores} cores, medians of {len(rounds)} rounds\n")
    print("| From request to first text | seconds |\n| --- | ---: |")
    print(f"| without a spare | {without:.2f} |\n| with a spare | {with_spare:.2f} |")
    ratio = statistics.median(ratios)
    print(f"\nRatio {ratio:.2f}, from {ratios[0]:.2f} to {ratios[-1]:.2f} (target {_TARGET}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
