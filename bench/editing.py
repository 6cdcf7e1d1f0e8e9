"""Sessions of agents that edit files: each turn a tool shows source text, and the answer repeats it
with a change, or a tool shows a patch, and the answer repeats that.

Bulkhead and its peers take turns on whole sessions. Each of several agents at once has a model of
its own, and one of the models is loaded at a time: Bulkhead and `mlx_lm.server` swap them between
the agents' turns. vllm-mlx and Rapid-MLX serve one model, so they take part only if there is one
agent.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from bench.conversation import chat
from bench.copying import COPYING, make_copying_model
from bench.edits import Edits
from bench.models import HALF_BILLION
from bench.servers import BulkheadServer, MeasuredServer, MlxLmServer, RapidMlx, VllmMlx

# An answer that misses its end goes on for so many tokens more than the expected one.
_MARGIN_TOKENS: Final = 16
_NAMES: Final = ("bench", "second", "third", "fourth")


class EditRun(NamedTuple):
    """One agent's session: for each answer the seconds until its first text and until its end, the
    characters of all answers, and how many answers were the expected ones.
    """

    first_s: list[float]
    answers_s: list[float]
    characters: int
    expected: int


class Agents(NamedTuple):
    """The sessions of agents that ran at once, and the seconds until the last one's end."""

    wall_s: float
    runs: list[EditRun]


def measure_editing(
    folder: Path, parsed: argparse.Namespace, numbers: Iterable[int]
) -> dict[str, list[Agents]]:
    """The rounds of each server, by its name. `numbers` are those of the rounds.

    Raises:
        FailedError: a server didn't start, or an answer ended with an error.
    """
    models = _models(folder, parsed)
    rounds: dict[str, list[Agents]] = {}
    with ExitStack() as ends:
        servers = []
        for server in _servers(folder, models, parsed):
            ends.callback(server.stop)
            servers.append(server)
            for name in _names(server, models):
                chat(server.address, name, [{"role": "user", "content": "Good morning."}], 8)
        for number in numbers:
            for server in servers:
                made = _agents(server, models, parsed, number)
                rounds.setdefault(server.name, []).append(made)
                print(f"{server.name}, edits: {made.wall_s:.1f} s", file=sys.stderr)
    return rounds


def print_editing(rounds: dict[str, list[Agents]]) -> None:
    walls = {
        name: statistics.median(agents.wall_s for agents in all_) for name, all_ in rounds.items()
    }
    print(
        "| edits | session (s) | first text (s) | rest of an answer (s) | characters/s | expected |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, all_ in rounds.items():
        runs = [run for agents in all_ for run in agents.runs]
        first = [number for run in runs for number in run.first_s]
        answers = [number for run in runs for number in run.answers_s]
        rest = [whole - until for until, whole in zip(first, answers, strict=True)]
        rate = sum(run.characters for run in runs) / sum(rest)
        expected = sum(run.expected for run in runs) / len(answers)
        print(
            f"| {name} | {walls[name]:.1f} | {statistics.median(first):.2f} "
            f"| {statistics.median(rest):.2f} | {rate:.0f} | {expected:.0%} |"
        )
    ours = walls.pop(BulkheadServer.name)
    ratios = ", ".join(f"{ours / wall:.2f} of {name}'s" for name, wall in walls.items())
    print(f"\n{BulkheadServer.name}'s time for the edits: {ratios}.")


def _models(folder: Path, parsed: argparse.Namespace) -> list[Path]:
    """A model folder for each agent: the same model under several names."""
    first = folder / "editing-1"
    if parsed.model is not None:
        first.symlink_to(parsed.model.resolve())
    elif parsed.half_billion:
        make_copying_model(first, HALF_BILLION, bits=16)
    else:
        make_copying_model(first, COPYING)
    others = [folder / f"editing-{number}" for number in range(2, parsed.agents + 1)]
    for other in others:
        other.symlink_to(first.resolve())
    return [first, *others]


def _servers(
    folder: Path, models: list[Path], parsed: argparse.Namespace
) -> Iterator[MeasuredServer]:
    alone = len(models) == 1
    options = [] if alone else ["--config", str(_taking_turns(folder, models))]
    state, log = folder / "editing-state", folder / "editing.log"
    yield BulkheadServer(models[0], state, log, *options)
    yield MlxLmServer(models[0], folder / "editing-server.log")
    if alone and parsed.vllm_mlx is not None:
        yield VllmMlx(parsed.vllm_mlx, models[0], folder / "editing-vllm-mlx.log")
    if alone and parsed.rapid_mlx is not None:
        yield RapidMlx(parsed.rapid_mlx, models[0], folder / "editing-rapid-mlx.log")


def _taking_turns(folder: Path, models: list[Path]) -> Path:
    """A configuration by which one of the models is loaded at a time."""
    names = _NAMES[: len(models)]
    tables = [
        f'[models.{name}]\npath = "{model}"' for name, model in zip(names, models, strict=True)
    ]
    members = ", ".join(f'"{name}"' for name in names)
    path = folder / "editing.toml"
    group = f"[groups.agents]\nmodels = [{members}]\nswap = true"
    path.write_text("\n".join([*tables, group]), "utf-8")
    return path


def _names(server: MeasuredServer, models: list[Path]) -> list[str]:
    """The names by which the server knows the models. mlx_lm.server loads whatever folder it is
    asked for.
    """
    if isinstance(server, BulkheadServer):
        return list(_NAMES[: len(models)])
    return [server.model, *(str(model) for model in models[1:])]


def _agents(
    server: MeasuredServer, models: list[Path], parsed: argparse.Namespace, number: int
) -> Agents:
    with ThreadPoolExecutor(len(models)) as threads:
        began = time.perf_counter()
        running = [
            threads.submit(_session, server, name, models[0], parsed, number * len(models) + agent)
            for agent, name in enumerate(_names(server, models))
        ]
        runs = [future.result() for future in running]
        return Agents(time.perf_counter() - began, runs)


def _session(
    server: MeasuredServer, name: str, model: Path, parsed: argparse.Namespace, seed: int
) -> EditRun:
    edits = Edits(model, seed, parsed.lines)
    messages = [edits.system(parsed.system)]
    first_s, answers_s = [], []
    characters = expected = 0
    for turn in islice(edits.turns(), parsed.edits):
        messages += turn.messages
        made = chat(server.address, name, messages, turn.tokens + _MARGIN_TOKENS)
        messages.append({"role": "assistant", "content": made.answer})
        first_s.append(made.first_s)
        answers_s.append(made.whole_s)
        characters += len(made.answer)
        expected += made.answer == turn.expected
    return EditRun(first_s, answers_s, characters, expected)
