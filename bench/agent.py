"""`python -m bench.agent`: an agent's day: a session that reads, and a session that edits.

The one that reads has a long system prompt, and turns of tool results, of random words. Bulkhead
and mlx_lm.server take turns on whole sessions, greedy and one request at a time. In two further
cases Bulkhead answers for another model between every two turns, and only one of them is loaded at
a time: with one spare worker, as it is by default, and with two. The last one is mlx-lm's own loop
in one process that keeps its cache, the least that the work can take.

In the session that edits, answers repeat most of what a tool has shown: files with a change, and
patches. If no model is named, one is made that copies.

vllm-mlx and Rapid-MLX take part if their programs are named.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from bench.conversation import RandomText, ask, order
from bench.editing import measure_editing, print_editing
from bench.machine import describe_machine
from bench.models import AGENT, endless_model, model_parser
from bench.raw import Kept
from bench.results import FailedError
from bench.servers import BulkheadServer, MeasuredServer, MlxLmServer, RapidMlx, VllmMlx

_TARGET: Final = 0.6
_SWAP_TARGET: Final = 1.3
_SWAPPED: Final = "Bulkhead, another model between turns"
_SWAPPED_BY_TWO: Final = f"{_SWAPPED}, two spares"


class AgentRun(NamedTuple):
    """Seconds until the first text and until the end of each turn's answer."""

    first_s: list[float]
    turns_s: list[float]

    @property
    def wall_s(self) -> float:
        return sum(self.turns_s)


def main() -> int:
    parser = model_parser(
        "bench.agent", __doc__, rounds=3, model=None, shown="2 layers", for_gpu=True
    )
    parser.add_argument("--vllm-mlx", metavar="PROGRAM", help="vllm-mlx's program, if there is one")
    parser.add_argument("--rapid-mlx", metavar="PROGRAM", help="Rapid-MLX's program, likewise")
    parser.add_argument("--turns", type=int, default=20, metavar="N", help="turns that read")
    parser.add_argument("--edits", type=int, default=8, metavar="N", help="turns that edit")
    parser.add_argument("--lines", type=int, default=32, metavar="N", help="lines that are shown")
    parser.add_argument(
        "--agents", type=int, default=1, choices=range(1, 5), help="that edit at once"
    )
    parser.add_argument("--system", type=int, default=8000, metavar="TOKENS")
    parser.add_argument("--result", type=int, default=900, metavar="TOKENS")
    parser.add_argument("--answer", type=int, default=120, metavar="TOKENS")
    parsed = parser.parse_args()
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bh-")))
        print(f"{describe_machine()}; {parsed.turns} turns that read,")
        print(f"of {parsed.result} + {parsed.answer} tokens after {parsed.system}; ", end="")
        print(f"{parsed.edits} that edit {parsed.lines} lines, {parsed.agents} at once\n")
        try:
            if parsed.turns:
                endless_model(parsed, folder, AGENT)
                _print(_measure(folder, parsed))
            if parsed.edits:
                print_editing(measure_editing(folder, parsed, range(parsed.rounds)))
        except (FailedError, OSError) as error:
            print(f"bench.agent: {error}", file=sys.stderr)
            return 1
    return 0


def _print(sessions: dict[str, list[AgentRun]]) -> None:
    walls = {name: statistics.median(s.wall_s for s in all_) for name, all_ in sessions.items()}
    print("| | session (s) | first turn's first text (s) | later turns', median (s) |")
    print("| --- | ---: | ---: | ---: |")
    for name, all_ in sessions.items():
        first = statistics.median(run.first_s[0] for run in all_)
        later = statistics.median(s for agent_run in all_ for s in agent_run.first_s[1:])
        print(f"| {name} | {walls[name]:.1f} | {first:.2f} | {later:.3f} |")
    ours = walls[BulkheadServer.name]
    print(
        f"\nAgainst {MlxLmServer.name}: {ours / walls[MlxLmServer.name]:.2f} (target {_TARGET}); "
        f"with swaps against without: {walls[_SWAPPED] / ours:.2f} (target {_SWAP_TARGET}), "
        f"with two spares {walls[_SWAPPED_BY_TWO] / ours:.2f}; "
        f"against the loop: {ours / walls[Kept.name]:.2f}.\n"
    )


def _measure(folder: Path, parsed: argparse.Namespace) -> dict[str, list[AgentRun]]:
    sessions: dict[str, list[AgentRun]] = {}
    with ExitStack() as ends:
        ours = BulkheadServer(folder / "model", folder / "state", folder / "bulkhead.log")
        ends.callback(ours.stop)
        theirs = MlxLmServer(folder / "model", folder / "server.log")
        ends.callback(theirs.stop)
        other = f"{folder / 'model'}=other"
        subjects: list[tuple[str, MeasuredServer]] = [(ours.name, ours), (theirs.name, theirs)]
        if parsed.vllm_mlx is not None:
            peer = VllmMlx(parsed.vllm_mlx, folder / "model", folder / "vllm-mlx.log")
            ends.callback(peer.stop)
            subjects.append((peer.name, peer))
        if parsed.rapid_mlx is not None:
            rapid = RapidMlx(parsed.rapid_mlx, folder / "model", folder / "rapid-mlx.log")
            ends.callback(rapid.stop)
            subjects.append((rapid.name, rapid))
        for spares, name in enumerate((_SWAPPED, _SWAPPED_BY_TWO), start=1):
            swapping = BulkheadServer(
                *(folder / "model", folder / f"state-{spares}", folder / f"swapping-{spares}.log"),
                *("--model", other, "--spare", str(spares)),
            )
            ends.callback(swapping.stop)
            subjects.append((name, swapping))
        loop = Kept(folder / "model")
        ends.callback(loop.stop)
        for _, server in subjects:
            ask(server.address, server.model, "Good morning.", 8)
        loop.ask("Good morning.", 8)
        for number in range(parsed.rounds):
            for name, server in subjects:
                words = RandomText(folder / "model", number)
                session = _session(server, words, parsed, swaps=name in (_SWAPPED, _SWAPPED_BY_TWO))
                sessions.setdefault(name, []).append(session)
                print(f"{name}: {session.wall_s:.1f} s", file=sys.stderr)
            sessions.setdefault(loop.name, []).append(
                _alone(loop, RandomText(folder / "model", number), parsed)
            )
    return sessions


def _session(
    server: MeasuredServer, words: RandomText, parsed: argparse.Namespace, *, swaps: bool
) -> AgentRun:
    prompt = words.draw(parsed.system)
    session = AgentRun([], [])
    for turn in range(parsed.turns):
        if swaps and turn:
            order(server.address, server.model, "unload")
            ask(server.address, "other", "Good morning.", 8)
            order(server.address, "other", "unload")
        prompt += words.draw(parsed.result)
        made = ask(server.address, server.model, prompt, parsed.answer)
        session.first_s.append(made.first_s)
        session.turns_s.append(made.whole_s)
        prompt += made.answer
    return session


def _alone(loop: Kept, words: RandomText, parsed: argparse.Namespace) -> AgentRun:
    loop.restart()
    session = AgentRun([], [])
    text = words.draw(parsed.system)
    for _ in range(parsed.turns):
        made = loop.ask(text + words.draw(parsed.result), parsed.answer)
        session.first_s.append(made.first_s)
        session.turns_s.append(made.whole_s)
        text = ""
    print(f"{loop.name}: {session.wall_s:.1f} s", file=sys.stderr)
    return session


if __name__ == "__main__":
    sys.exit(main())
