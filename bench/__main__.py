"""`python -m bench`: measure three subjects, print the tables.

A missed target is a result and not a failure: the exit status is 1 only if something didn't run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench import arguments
from bench.machine import describe_machine
from bench.model import copy_without_end
from bench.processes import memory_bytes
from bench.raw import Raw
from bench.report import render
from bench.results import GATEWAY, FailedError, Report, Round
from bench.schedule import Schedule, load_average
from bench.servers import BulkheadServer, MlxLmServer
from bench.tiny import build_tiny_model
from gateway.config.model_folders import DEMO_FOLDER


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
    parser = arguments.parser(
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
        model = folder / "model"
        source = parsed.model or folder / "tiny"
        if parsed.model is None:
            build_tiny_model(DEMO_FOLDER, source)
        copy_without_end(source, model)
        raw = Raw(model)
        ends.callback(raw.stop)
        bulkhead = BulkheadServer(model, folder / "state", folder / "bulkhead.log")
        ends.callback(bulkhead.stop)
        server = MlxLmServer(model, folder / "server.log")
        ends.callback(server.stop)
        schedule = Schedule([raw, bulkhead, server], parsed.streams, parsed.tokens)
        schedule.warm_up()
        idle_cpu = schedule.idle_cpu()
        load_before = load_average()
        rounds = list(schedule.run(parsed.rounds, _show))
        return Report(
            machine=describe_machine(),
            model=source.name,
            tokens_per_stream=parsed.tokens,
            load_average=(load_before, load_average()),
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


if __name__ == "__main__":
    sys.exit(main())
