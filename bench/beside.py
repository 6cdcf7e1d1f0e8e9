"""`python -m bench.beside`: a resident model's tokens while another model loads.

The load is drawn out to ten seconds by a pause. Its imports and the reading of its weights compete
for the processor as they always do. Both measurements are repeated in turn.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import httpx

from bench.machine import describe_machine
from gateway.config.models import DEMO_FOLDER

_TARGET: Final = 2.0
_PATIENCE_S: Final = 120.0
_LOAD_S: Final = 10.0
_SLOW_LOAD: Final = f"""
import sys
if any(each.endswith("worker/__main__.py") for each in sys.orig_argv):
    import importlib.abc, importlib.util, os, time
    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name != "worker.loading":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            run = spec.loader.exec_module
            def exec_module(module):
                run(module)
                load = module.load
                def slow(*arguments):
                    if os.path.exists(os.environ["SLOW_FLAG"]):
                        time.sleep({_LOAD_S})
                    return load(*arguments)
                module.load = slow
            spec.loader.exec_module = exec_module
            return spec
    sys.meta_path.insert(0, Finder())
"""


class Gateway:
    """A gateway with a resident model and one that loads slowly."""

    def __init__(self, model: Path, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text(_SLOW_LOAD, "utf-8")
        self._flag = folder / "slow"
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gateway", "serve", "--port", "0"),
                *("--state-dir", str(folder / "state"), "--spare", "0"),
                *("--model", f"{model}=resident", "--model", f"{model}=other"),
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "PYTHONPATH": str(folder), "SLOW_FLAG": str(self._flag)},
        )
        assert self._process.stdout is not None
        address = re.search(r"http://\S+", self._process.stdout.readline())
        assert address is not None, "the gateway did not start"
        self._client = httpx.Client(base_url=address[0], timeout=_PATIENCE_S)
        self._order("resident", "load")
        self._flag.touch()

    def gaps_s(self, *, loading: bool) -> list[float]:
        """Times between the pieces of one stream, as a client sees them."""
        loader = threading.Thread(target=self._order, args=("other", "load"))
        gaps: list[float] = []
        if loading:
            loader.start()
        until = time.monotonic() + _LOAD_S
        while time.monotonic() < until or loader.is_alive():
            gaps += self._stream()
        if loading:
            loader.join(_PATIENCE_S)
            self._order("other", "unload")
        return gaps

    def stop(self) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait(_PATIENCE_S)
        self._log.close()

    def _order(self, model: str, verb: str) -> None:
        self._client.post(f"/admin/v1/models/{model}/{verb}", json={}).raise_for_status()

    def _stream(self) -> list[float]:
        body = {
            "model": "resident",
            "prompt": "Tell me a story.",
            "stream": True,
            "max_tokens": 400,
            "ignore_eos": True,
        }
        with self._client.stream("POST", "/v1/completions", json=body) as answer:
            arrivals = [
                time.perf_counter()
                for line in answer.iter_lines()
                if line.startswith("data: {") and _has_text(line)
            ]
        return [after - before for before, after in itertools.pairwise(arrivals)]


def _has_text(line: str) -> bool:
    choices = json.loads(line[6:])["choices"]
    return bool(choices and choices[0]["text"])


def _p99_ms(gaps: list[float]) -> float:
    return statistics.quantiles(gaps, n=100)[98] * 1000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.beside", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--model", type=Path, default=DEMO_FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bh-") as name:
        gateway = Gateway(arguments.model.resolve(), Path(name))
        alone: list[float] = []
        beside: list[float] = []
        try:
            for _ in range(arguments.rounds):
                alone += gateway.gaps_s(loading=False)
                beside += gateway.gaps_s(loading=True)
        finally:
            gateway.stop()
    machine = describe_machine()
    print(f"{machine.processor}, {machine.cores} cores, {arguments.rounds} rounds\n")
    print("| Between two pieces of a stream (ms) | median | p99 | longest |")
    print("| --- | ---: | ---: | ---: |")
    for title, gaps in (("undisturbed", alone), ("while another model loads", beside)):
        median, longest = statistics.median(gaps) * 1000, max(gaps) * 1000
        print(f"| {title} | {median:.1f} | {_p99_ms(gaps):.1f} | {longest:.1f} |")
    print(f"\nRatio of p99: {_p99_ms(beside) / _p99_ms(alone):.2f} (target {_TARGET}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
