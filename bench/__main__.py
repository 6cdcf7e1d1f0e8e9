"""`python -m bench`: mlx-lm, Bulkhead and mlx_lm.server take turns; prints the tables.

A missed target is a result and not a failure: the exit status is 1 only if something didn't run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol

import msgspec

from bench.machine import cpu_s, describe_machine, memory_bytes
from bench.models import TINY, endless_model, model_parser
from bench.prompts import FreshPrompts, Prompt, Sampled, sampled
from bench.raw import Raw
from bench.report import render
from bench.results import GATEWAY, FailedError, Generation, Report, Round
from bench.servers import BulkheadServer, MeasuredServer, MlxLmServer

# A load is repeated for so long while health is probed: some hundred probes a table cell.
_PROBED_S: Final = 2.0
_IDLE_S: Final = 5.0


def main() -> int:
    parsed = _parse()
    try:
        report = _measure(parsed)
    except FailedError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(render(report))
    if parsed.json is not None:
        parsed.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return 0


def _parse() -> argparse.Namespace:
    parser = model_parser(
        "bench", __doc__, rounds=5, model=None, shown="random weights, 2 layers of width 64"
    )
    parser.add_argument("--streams", type=_counts, default=[1, 8, 32], metavar="N,N,...")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="for each stream")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round to a file")
    return parser.parse_args()


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _measure(parsed: argparse.Namespace) -> Report:
    with ExitStack() as ends:
        # Short: the paths of Bulkhead's sockets are bounded.
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bh-")))
        model = endless_model(parsed, folder, TINY)
        raw = Raw(model)
        ends.callback(raw.stop)
        bulkhead = BulkheadServer(model, folder / "state", folder / "bulkhead.log")
        ends.callback(bulkhead.stop)
        server = MlxLmServer(model, folder / "server.log")
        ends.callback(server.stop)
        schedule = Schedule([raw, bulkhead, server], parsed.streams, parsed.tokens)
        schedule.warm_up()
        idle_cpu = schedule.idle_cpu()
        load_before = os.getloadavg()[0]
        rounds = []
        for item in schedule.run(parsed.rounds):
            _show(item)
            rounds.append(item)
        return Report(
            machine=describe_machine(),
            model="tiny" if parsed.model is None else parsed.model.name,
            tokens_per_stream=parsed.tokens,
            load_average=(load_before, os.getloadavg()[0]),
            idle_cpu=idle_cpu,
            gateway_memory_bytes=memory_bytes(bulkhead.processes()[GATEWAY]),
            rounds=rounds,
        )


def _show(measured: Round) -> None:
    """Progress, on stderr: the tables alone are the output."""
    print(
        f"round {measured.number + 1}: {measured.subject}, {measured.streams} "
        f"{'sampled' if measured.sampled else 'greedy'} streams, "
        f"{measured.generation.tokens_per_s:.0f} tokens/s",
        file=sys.stderr,
    )


class Subject(Protocol):
    name: str

    def processes(self) -> dict[str, int]: ...

    def generate(self, prompts: Sequence[Prompt], tokens: int) -> Generation: ...


class Schedule:
    """Rounds of every subject with every number of streams. Subjects take turns within a round, so
    that the machine's moods hit all.
    """

    def __init__(
        self, subjects: Sequence[Subject], stream_counts: Sequence[int], tokens: int
    ) -> None:
        self._subjects = subjects
        self._stream_counts = stream_counts
        self._tokens = tokens
        self._prompts = FreshPrompts()

    def warm_up(self) -> None:
        """Load the models, and throw one round away."""
        for streams in self._stream_counts:
            for subject in self._subjects:
                subject.generate(self._prompts.draw(streams), self._tokens)
                subject.generate(sampled(self._prompts.draw(streams)), self._tokens)

    def idle_cpu(self) -> dict[str, float]:
        """The share of one core that each process takes while there are no requests."""
        pids: dict[str, int] = {}
        for subject in self._subjects:
            pids |= subject.processes()
        before = cpu_s(pids)
        time.sleep(_IDLE_S)
        after = cpu_s(pids)
        return {name: (after[name] - before[name]) / _IDLE_S for name in pids}

    def run(self, rounds: int) -> Iterator[Round]:
        for number in range(rounds):
            for streams in self._stream_counts:
                for prompts in (
                    self._prompts.draw(streams),
                    sampled(self._prompts.draw(streams)),
                ):
                    for subject in self._subjects:
                        yield self._turn(number, subject, prompts)

    def _turn(self, number: int, subject: Subject, prompts: Sequence[Prompt]) -> Round:
        streams = len(prompts)
        pids = subject.processes()
        before = cpu_s(pids)
        generation = subject.generate(prompts, self._tokens)
        after = cpu_s(pids)
        health_s = []
        if isinstance(subject, MeasuredServer) and not isinstance(prompts, Sampled):
            health_s = subject.probe_health(
                lambda: self._prompts.draw(streams), self._tokens, _PROBED_S
            )
        return Round(
            number=number,
            subject=subject.name,
            streams=streams,
            generation=generation,
            cpu_s={name: after[name] - before[name] for name in pids},
            health_s=health_s,
            sampled=isinstance(prompts, Sampled),
        )


if __name__ == "__main__":
    sys.exit(main())
