"""`python -m bench.turns`: the first token of a conversation's second turn, and of the first
requests after a load.

The second turn follows at once, after an unload and a load, after SIGKILL of the worker, and of
the gateway. Bulkhead answers one request at a time; loads are not counted.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.conversation import RandomText, Turn, ask, order
from bench.machine import describe_machine, wait_until_gone
from bench.models import AGENT, endless_model, model_parser
from bench.results import GATEWAY, WORKER, FailedError
from bench.servers import BulkheadServer

_ANSWER: Final = 32
_NEXT: Final = 40
_FIRSTS: Final = 12
_TARGETS: Final = {"at once": 0.1, "unloaded": 0.2, "worker killed": 0.2, "gateway killed": 0.2}
_FIRST_TARGET: Final = 1.3


class InterruptedGateway:
    """Bulkhead with one model and one state folder, whose processes may be killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = self._start()

    @property
    def running(self) -> BulkheadServer:
        return self._running

    def ask(self, prompt: str, tokens: int = _ANSWER, temperature: float = 0.0) -> Turn:
        return ask(self._running.address, "bench", prompt, tokens, temperature)

    def nothing(self) -> None:
        """The next turn follows at once."""

    def unload(self) -> None:
        order(self._running.address, "bench", "unload")
        order(self._running.address, "bench", "load")

    def kill_worker(self) -> None:
        pid = self._running.processes()[WORKER]
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
        # Until the gateway has noticed, an order would find the model loaded.
        time.sleep(0.5)
        order(self._running.address, "bench", "load")

    def kill_gateway(self) -> None:
        processes = self._running.processes()
        os.kill(processes[GATEWAY], signal.SIGKILL)
        self._running.stop()
        wait_until_gone(processes[WORKER])
        self._running = self._start()
        order(self._running.address, "bench", "load")

    def _start(self) -> BulkheadServer:
        return BulkheadServer(self._folder / "model", self._folder / "state", self._folder / "log")


def main() -> int:
    parser = model_parser(
        "bench.turns", __doc__, rounds=5, model=None, shown="2 layers", for_gpu=True
    )
    parser.add_argument("--prompt", type=int, default=4000, metavar="TOKENS")
    parsed = parser.parse_args()
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bh-")))
        endless_model(parsed, folder, AGENT)
        print(f"{describe_machine()}\n")
        server = InterruptedGateway(folder)
        ends.callback(lambda: server.running.stop())
        try:
            _turns(server, RandomText(folder / "model", 1), parsed.rounds, parsed.prompt)
            _firsts(server, RandomText(folder / "model", 2), parsed.rounds)
        except (FailedError, OSError) as error:
            print(f"bench.turns: {error}", file=sys.stderr)
            return 1
    return 0


def _turns(server: InterruptedGateway, words: RandomText, rounds: int, tokens: int) -> None:
    between: dict[str, Callable[[], None]] = {
        "at once": server.nothing,
        "unloaded": server.unload,
        "worker killed": server.kill_worker,
        "gateway killed": server.kill_gateway,
    }
    print(f"Medians of {rounds} conversations whose first turn has {tokens} tokens.\n")
    print("| between the turns | first turn (s) | second (s) | ratio | target |")
    print("| --- | ---: | ---: | ---: | ---: |")
    server.ask(words.draw(tokens))
    for name, happen in between.items():
        firsts, seconds = [], []
        for _ in range(rounds):
            prompt = words.draw(tokens)
            first = server.ask(prompt)
            # Kept prompts go to disk beside the engine.
            time.sleep(1.0)
            happen()
            second = server.ask(f"{prompt}{first.answer} {words.draw(_NEXT)}")
            firsts.append(first.first_s)
            seconds.append(second.first_s)
            print(f"{name}: {first.first_s:.3f}, {second.first_s:.3f} s", file=sys.stderr)
        first_s, second_s = statistics.median(firsts), statistics.median(seconds)
        print(
            f"| {name} | {first_s:.3f} | {second_s:.3f} | {second_s / first_s:.2f} "
            f"| {_TARGETS[name]} |",
            flush=True,
        )


def _firsts(server: InterruptedGateway, words: RandomText, rounds: int) -> None:
    print(f"\nThe first token of short requests after a load, medians of {rounds} loads (ms).\n")
    print(f"| | {' | '.join(str(1 + i) for i in range(_FIRSTS))} | first to tenth |")
    print(f"| --- |{' ---: |' * (_FIRSTS + 1)}")
    # A GPU compiles kernels for each length of a prompt.
    cases = (("greedy", 0.0, 0), ("sampled", 0.8, 0), ("greedy, of lengths that differ", 0.0, 7))
    for name, temperature, longer in cases:
        loads = []
        for _ in range(rounds):
            server.unload()
            prompts = [words.draw(100 + longer * number) for number in range(_FIRSTS)]
            loads.append([server.ask(prompt, 16, temperature).first_s for prompt in prompts])
        medians = [statistics.median(pair) * 1e3 for pair in zip(*loads, strict=True)]
        shown = " | ".join(f"{median:.0f}" for median in medians)
        print(f"| {name} | {shown} | {medians[0] / medians[9]:.2f} (target {_FIRST_TARGET}) |")


if __name__ == "__main__":
    sys.exit(main())
