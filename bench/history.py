"""`python -m bench.history`: the processor time that the history takes of the gateway.

A sample of many busy models is added again and again, as the recorder adds one every 2 s. Each
minute the history is packed, as for its file. The page reads the hour every 10 s.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from bench.machine import describe_machine
from gateway.history.history import History
from gateway.history.steps import MOST_MODELS, ModelSample, Sample

_SAMPLE_S: Final = 2.0
_WRITE_S: Final = 60.0
_READ_S: Final = 10.0
_START: Final = 1_800_000_000.0
_GB: Final = 1 << 30


def main() -> int:
    parser = argparse.ArgumentParser("bench.history", description=__doc__)
    parser.add_argument("--models", type=int, default=MOST_MODELS, help="models that are loaded")
    models = parser.parse_args().models
    history, now = History(), _START
    began = time.process_time()
    samples = int(24 * 3600 / _SAMPLE_S)
    for step in range(samples):
        now = _START + step * _SAMPLE_S
        history.add(_sample(models, step), now)
    per_sample_s = (time.process_time() - began) / samples
    costs = {
        "a sample": (per_sample_s, _SAMPLE_S),
        "the state for the file": (_seconds(lambda: history.state), _WRITE_S),
        "its packing, beside the event loop": (_seconds(lambda: history.state.packed), _WRITE_S),
        "a reading of the hour by the page": (
            _seconds(lambda: msgspec.json.encode(history.read("hour", now))),
            _READ_S,
        ),
    }
    print(describe_machine())
    print(f"A day of {models} models, whose values all change with each sample.\n")
    print("| work | ms | every (s) | share of a core |")
    print("| --- | ---: | ---: | ---: |")
    for work, (seconds, every_s) in costs.items():
        print(f"| {work} | {seconds * 1000:.2f} | {every_s:.0f} | {seconds / every_s:.3%} |")
    recorded = sum(seconds / every_s for seconds, every_s in list(costs.values())[:3])
    print(f"\nRecording takes {recorded:.3%} of a core; the target is 0.2 %.")
    print(f"The packed history has {len(history.state.packed) / 1000:.0f} kB.")
    return 0


def _sample(models: int, step: int) -> Sample:
    return Sample(
        budget_bytes=64 * _GB,
        spare_bytes=100_000_000 + step,
        waiting=step % 7,
        prompt_tokens=step % 1000,
        first_token_s=(0.1 + step % 10,) * 4,
        models={
            f"owner/model-{n}": ModelSample(_GB + (step * n * 4096) % _GB, _GB, step * n, n + step)
            for n in range(models)
        },
    )


def _seconds(work: Callable[[], object], times: int = 20) -> float:
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


if __name__ == "__main__":
    sys.exit(main())
