"""`python -m bench.ranks`: a model served by one process, and by several that compute it together.

Both are served by one gateway each and take turns on the same prompts, so that the machine's moods
hit both. On cards of their own ranks should be faster; on one processor they are slower, as they
share it and wait for each other.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.machine import describe_machine
from bench.models import copy_without_end, model_parser
from bench.prompts import FreshPrompts
from bench.results import FailedError
from bench.servers import BulkheadServer


def main() -> int:
    parser = model_parser("bench.ranks", __doc__, rounds=3)
    parser.add_argument("--local", type=int, default=2, metavar="N", help="ranks")
    parser.add_argument("--backend", choices=("ring", "nccl"), default=None)
    parser.add_argument("--split", choices=("tensor", "pipeline"), default="tensor")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8], metavar="N")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="for each stream")
    parsed = parser.parse_args()
    print(f"{describe_machine()}; {parsed.tokens} tokens\n")
    try:
        rates = _measure(parsed)
    except (FailedError, OSError) as error:
        print(f"bench.ranks: {error}", file=sys.stderr)
        return 1
    print(f"| streams | one process (tokens/s) | {parsed.local} ranks | ratio |")
    print("| ---: | ---: | ---: | ---: |")
    for streams, (alone, together) in rates.items():
        print(f"| {streams} | {alone:.1f} | {together:.1f} | {together / alone:.2f} |")
    return 0


def _measure(parsed: argparse.Namespace) -> dict[int, tuple[float, float]]:
    """Medians of tokens a second, of one process and of ranks, by the number of streams."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bh-")))
        copy_without_end(parsed.model, folder / "model")
        subjects = []
        for local in (1, parsed.local):
            config = folder / f"{local}.toml"
            config.write_text(_config(folder / "model", local, parsed))
            server = BulkheadServer(
                folder / "model",
                folder / f"state{local}",
                folder / f"{local}.log",
                *("--config", str(config)),
            )
            ends.callback(server.stop)
            subjects.append(server)
        prompts = FreshPrompts()
        rates: dict[int, tuple[list[float], list[float]]] = {}
        for round_ in range(parsed.rounds + 1):
            for streams in parsed.streams:
                asked = prompts.draw(streams)
                made = [subject.generate(asked, parsed.tokens) for subject in subjects]
                # The first one loads the models.
                if round_:
                    lists = rates.setdefault(streams, ([], []))
                    for rate, generation in zip(lists, made, strict=True):
                        rate.append(generation.tokens_per_s)
        return {
            streams: (statistics.median(alone), statistics.median(together))
            for streams, (alone, together) in rates.items()
        }


def _config(model: Path, local: int, parsed: argparse.Namespace) -> str:
    backend = "" if parsed.backend is None else f'backend = "{parsed.backend}"\n'
    return f'[models.bench]\npath = "{model}"\nlocal = {local}\nsplit = "{parsed.split}"\n{backend}'


if __name__ == "__main__":
    sys.exit(main())
