"""`python -m bench.card`: a GPU's speeds, by one command.

Bulkhead over HTTP and mlx-lm without a server take turns, and compute on the same processor core:
many streams with three models, and one row behind a long context. Then both load a model with no
compiled kernels, and an agent edits files with Bulkhead and with its peers. Each part makes
`--rounds` rounds, or fewer if these take longer than its share of the time. All parts take about
ten minutes on a card that has kernels already: `--rounds 0` compiles them. The weights of the two
large models are set by hand so that they copy, and their answers repeat themselves.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from bench.card_models import EIGHT, MIXTURE, SMALL, Models
from bench.card_report import CardReport, Edits, FirstMinute, OneRow, Streams, render
from bench.conversation import RandomText, Turn, ask
from bench.editing import measure_editing
from bench.machine import describe_machine, share_core
from bench.prompts import FreshPrompts, sampled
from bench.raw import Kept, MlxLmProcess, Raw
from bench.results import WORKER, FailedError, Generation
from bench.servers import BulkheadServer

# Tokens of a stream: fewer where there are many streams, or where a step takes long.
_LONG: Final = 128
_MIDDLE: Final = 64
_SHORT: Final = 32
_SAMPLED_STREAMS: Final = 32
# A row's steps differ by half from second to second, so its rounds are short and many.
_ROW_TOKENS: Final = 32
_ROW_ROUNDS: Final = 6
_CONTEXTS: Final = (200, 8000, 30000)
_SEED: Final = 1
# Where MLX, and the driver behind it, keep compiled kernels.
_KERNELS: Final = ("MLX_PTX_CACHE_DIR", "CUDA_CACHE_PATH")


class Card:
    """The parts of the measurement. Each adds to the lists what it has measured."""

    def __init__(
        self, folder: Path, models: Models, rounds: int, peers: Mapping[str, str | None]
    ) -> None:
        """`peers`: the programs of vllm-mlx and Rapid-MLX, as `bench.agent` names its options."""
        self.streams: list[Streams] = []
        self.rows: list[OneRow] = []
        self.first: list[FirstMinute] = []
        self.edits: list[Edits] = []
        self._folder = folder
        self._models = models
        self._rounds = rounds
        self._peers = peers
        self._prompts = FreshPrompts()
        self._names = 0

    def report(self, failed: list[str], seconds: float) -> CardReport:
        return CardReport(
            machine=describe_machine(),
            card=_card(),
            streams=self.streams,
            rows=self.rows,
            first=self.first,
            edits=self.edits,
            failed=failed,
            seconds=seconds,
        )

    def small(self, seconds: float) -> None:
        counts = [(1, _MIDDLE), (8, _MIDDLE), (32, _LONG), (128, _MIDDLE), (256, _MIDDLE)]
        self._many(SMALL, counts, seconds)

    def eight(self, seconds: float) -> None:
        self._many(EIGHT, [(8, _MIDDLE), (32, _SHORT)], seconds)

    def mixture(self, seconds: float) -> None:
        self._many(MIXTURE, [(1, _SHORT), (8, _SHORT), (32, _SHORT)], seconds)

    def one_row(self, seconds: float) -> None:
        model = self._models.folder_of(EIGHT)
        config = self._folder / "alone.toml"
        config.write_text(f'[models.bench]\npath = "{model}"\nguesses = false\n', "utf-8")
        with self._serving(model, "--config", str(config)) as server, _stopped(Kept(model)) as loop:
            words = RandomText(model, _SEED)

            def of_server(text: str) -> Turn:
                return ask(server.address, server.model, text, _ROW_TOKENS)

            _together(lambda: of_server("The ships"), lambda: loop.ask("The ships", _ROW_TOKENS))
            self._ready(loop, server)
            for context in _CONTEXTS:
                row = OneRow(EIGHT, context, [], [])
                text = words.draw(context)
                loop.restart()
                # The first round computes the prompt, and isn't counted. Both keep their caches.
                answers = loop.ask(text, _ROW_TOKENS), of_server(text)
                for _ in _within(seconds / len(_CONTEXTS), _ROW_ROUNDS * self._rounds):
                    more = words.draw(8)
                    text += answers[1].answer + more
                    answers = loop.ask(more, _ROW_TOKENS), of_server(text)
                    for rates, turn in zip((row.raw, row.ours), answers, strict=True):
                        rates.append((_ROW_TOKENS - 1) / (turn.whole_s - turn.first_s))
                if row.ours:
                    self.rows.append(row)

    def first_minute(self) -> None:
        model = self._models.folder_of(SMALL)
        text = self._prompts.draw(1)[0]
        with _without_kernels(self._folder / "raw-kernels"):
            began = time.perf_counter()
            with _stopped(Kept(model)) as loop:
                turn = loop.ask(text, 2)
                raw_s = time.perf_counter() - began - (turn.whole_s - turn.first_s)
        with _without_kernels(self._folder / "kernels"):
            began = time.perf_counter()
            with self._serving(model) as server:
                turn = ask(server.address, server.model, text, 2)
                ours_s = time.perf_counter() - began - (turn.whole_s - turn.first_s)
                rates = [
                    server.generate(
                        sampled(self._prompts.draw(_SAMPLED_STREAMS)), _MIDDLE
                    ).tokens_per_s
                    for _ in range(2)
                ]
        self.first.append(FirstMinute(SMALL, raw_s, ours_s, rates))

    def agent(self, seconds: float) -> None:
        folder = self._folder / "agent"
        folder.mkdir()
        settings = argparse.Namespace(
            model=None, half_billion=True, agents=1, edits=2, lines=32, system=8000, **self._peers
        )
        rounds = measure_editing(folder, settings, _within(seconds, self._rounds))
        for name, sessions in rounds.items():
            runs = [run for agents in sessions for run in agents.runs]
            answers = sum(len(run.answers_s) for run in runs)
            expected = sum(run.expected for run in runs) / answers
            self.edits.append(Edits(name, [agents.wall_s for agents in sessions], expected))

    def _many(self, name: str, counts: list[tuple[int, int]], seconds: float) -> None:
        """Measure so many streams of so many tokens in turns."""
        model = self._models.folder_of(name)
        all_measured = [Streams(name, streams, [], [], []) for streams, _ in counts]
        tokens = dict(counts)
        with self._serving(model) as ours, _stopped(Raw(model)) as raw:
            # The first rounds compile kernels, and aren't counted.
            _together(
                lambda: ours.generate(self._prompts.draw(8), _MIDDLE),
                lambda: raw.generate(self._prompts.draw(8), _MIDDLE),
            )
            for measured in all_measured:
                self._round(measured, _SHORT, raw, ours)
            self._ready(raw, ours)
            for _ in _within(seconds, self._rounds):
                for measured in all_measured:
                    made = self._round(measured, tokens[measured.streams], raw, ours)
                    for rounds, generation in zip(
                        (measured.raw, measured.ours, measured.sampled), made, strict=False
                    ):
                        rounds.append(generation)
        self.streams += [measured for measured in all_measured if measured.ours]

    def _round(
        self, measured: Streams, tokens: int, raw: Raw, ours: BulkheadServer
    ) -> list[Generation]:
        """A turn of mlx-lm, one of Bulkhead, and perhaps one of Bulkhead's that is sampled."""
        prompts = self._prompts.draw(measured.streams)
        made = [raw.generate(prompts, tokens), ours.generate(prompts, tokens)]
        if measured.streams == _SAMPLED_STREAMS:
            made.append(ours.generate(sampled(self._prompts.draw(measured.streams)), tokens))
        rates = ", ".join(f"{generation.tokens_per_s:.0f}" for generation in made)
        print(f"{measured.model}, {measured.streams} streams: {rates} tokens/s", file=sys.stderr)
        return made

    def _ready(self, raw: MlxLmProcess, ours: BulkheadServer) -> None:
        """Before what is measured: nothing else runs, and both compute on the same core."""
        self._models.wait()
        share_core([*raw.processes().values(), ours.processes()[WORKER]])

    @contextmanager
    def _serving(self, model: Path, *options: str) -> Iterator[BulkheadServer]:
        self._names += 1
        state, log = (self._folder / f"{kind}{self._names}" for kind in ("state", "log"))
        # mlx-lm's process has the other half.
        half = "--memory-budget", "50%"
        with _stopped(BulkheadServer(model, state, log, *half, *options)) as server:
            yield server


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.card", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="at most")
    parser.add_argument("--part", choices=_PARTS, action="append", help="measure these alone")
    parser.add_argument("--vllm-mlx", metavar="PROGRAM", help="edit files with it, too")
    parser.add_argument("--rapid-mlx", metavar="PROGRAM", help="edit files with it, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round to a file")
    parsed = parser.parse_args()
    began, failed = time.perf_counter(), []
    with tempfile.TemporaryDirectory(prefix="bh-") as name:
        parts = parsed.part or _PARTS
        models = Models(Path(name), {model for part in parts for model in _PARTS[part].models})
        peers = {"vllm_mlx": parsed.vllm_mlx, "rapid_mlx": parsed.rapid_mlx}
        card = Card(Path(name), models, parsed.rounds, peers)
        for part in parts:
            measure, seconds, _ = _PARTS[part]
            try:
                measure(card, seconds)
            except (FailedError, OSError) as error:
                failed.append(f"{part}: {error}")
            report = card.report(failed, time.perf_counter() - began)
            print(f"{part}: {report.seconds:.0f} s", file=sys.stderr)
            # After each part, since the machine may be taken back before the last.
            if parsed.json is not None:
                parsed.json.write_bytes(msgspec.json.encode(report))
    print(render(report))
    return int(bool(failed))


class _Part(NamedTuple):
    """`seconds`: for the rounds alone. Loads, and kernels that are new, come on top."""

    measure: Callable[[Card, float], None]
    seconds: float
    models: tuple[str, ...]


_PARTS: Final = {
    "small": _Part(Card.small, 150.0, (SMALL,)),
    "eight": _Part(Card.eight, 60.0, (EIGHT,)),
    "one row": _Part(Card.one_row, 45.0, (EIGHT,)),
    "mixture": _Part(Card.mixture, 75.0, (MIXTURE,)),
    "first minute": _Part(lambda card, _: card.first_minute(), 0.0, (SMALL,)),
    "agent": _Part(Card.agent, 40.0, ()),
}


def _within(seconds: float, rounds: int) -> Iterator[int]:
    """The numbers of rounds. After so many seconds none is begun, except for the first."""
    until = time.monotonic() + seconds
    for number in range(rounds):
        yield number
        if time.monotonic() > until:
            return


@contextmanager
def _stopped(subject: Any) -> Iterator[Any]:
    try:
        yield subject
    finally:
        subject.stop()


def _together(*calls: Callable[[], object]) -> None:
    with ThreadPoolExecutor(len(calls)) as threads:
        for future in [threads.submit(call) for call in calls]:
            future.result()


@contextmanager
def _without_kernels(folder: Path) -> Iterator[None]:
    """Have processes that start meanwhile keep their kernels in a new folder."""
    before = {name: os.environ.get(name) for name in _KERNELS}
    os.environ |= {name: str(folder / name) for name in _KERNELS}
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def _card() -> str:
    """The name of the card, and its driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "no NVIDIA card"
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, check=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
