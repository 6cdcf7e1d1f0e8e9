"""`python -m bench.swap`: from a request to the first token of an unloaded model, with and without
a spare worker.

Both gateways run side by side and take turns, so that noise meets both alike.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx

from bench.machine import describe_machine
from gateway.config.models import DEMO_FOLDER

_TARGET: Final = 0.5
_PATIENCE_S: Final = 120.0


class Gateway:
    """A gateway with one model, and with or without a spare."""

    def __init__(self, model: Path, folder: Path, spares: int) -> None:
        self._spares = spares
        self._log = (folder / f"{spares}.log").open("wb")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gateway", "serve", "--port", "0"),
                *("--state-dir", str(folder / str(spares))),
                *("--model", f"{model}=model", "--spare", str(spares)),
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        address = re.search(r"http://\S+", self._process.stdout.readline())
        assert address is not None, "the gateway did not start"
        self._client = httpx.Client(base_url=address[0], timeout=_PATIENCE_S)

    def swap_s(self) -> float:
        """Unload, wait for rest, and ask: seconds until the first text."""
        self._client.post("/admin/v1/models/model/unload", json={}).raise_for_status()
        _wait_until(self._at_rest)
        body = {
            "model": "model",
            "messages": [{"role": "user", "content": "What is Bulkhead?"}],
            "stream": True,
            "max_tokens": 8,
        }
        began = time.perf_counter()
        with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {") and _text(line):
                    return time.perf_counter() - began
        raise AssertionError("no text came")

    def stop(self) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait(_PATIENCE_S)
        self._log.close()

    def _at_rest(self) -> bool:
        """The spare, if there is to be one, has ended its imports."""
        if self._spares == 0:
            return True
        text = self._client.get("/admin/v1/events?follow=0&recent=1000").text
        events = [json.loads(each[6:]) for each in text.splitlines() if each.startswith("data: ")]
        ready = sum(each.get("change") == "ready" for each in events)
        return ready == self._spares + sum(each["event"] == "adopt" for each in events)


def _text(line: str) -> str:
    choices = json.loads(line[6:])["choices"]
    return choices[0]["delta"].get("content") or "" if choices else ""


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the gateway did not come to rest")
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.swap", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--model", type=Path, default=DEMO_FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bh-") as name:
        gateways = [Gateway(arguments.model.resolve(), Path(name), spares) for spares in (0, 1)]
        try:
            rounds = [[each.swap_s() for each in gateways] for _ in range(arguments.rounds)]
        finally:
            for gateway in gateways:
                gateway.stop()
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
