"""`python -m bench.agent`: an agent's session: a long system prompt, and turns of tool results.

Bulkhead and mlx_lm.server take turns on whole sessions, greedy and one request at a time. A third
case has Bulkhead answer for another model between every two turns, with room for one of them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from tokenizers import Tokenizer

from bench import arguments
from bench.load import Address
from bench.machine import describe_machine
from bench.model import copy_without_end
from bench.results import FailedError
from bench.servers import Bulkhead, MlxLmServer, Server
from bench.tiny import build_agent_model, build_half_billion_model
from gateway.config.models import DEMO_FOLDER

_TARGET: Final = 0.6
_SWAP_TARGET: Final = 1.3
_PATIENCE_S: Final = 600.0
_SWAPPED: Final = "Bulkhead, another model between turns"


class Session(NamedTuple):
    """Seconds until the first text and until the end of each turn's answer."""

    first_s: list[float]
    turns_s: list[float]

    @property
    def wall_s(self) -> float:
        return sum(self.turns_s)


class Words:
    """Text of so many tokens."""

    def __init__(self, model: Path, seed: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._random = random.Random(seed)
        source = Path(__file__).parent.parent / "README.md"
        self._words = source.read_text("utf-8").split()

    def take(self, tokens: int) -> str:
        text = " ".join(self._random.choices(self._words, k=tokens))
        offsets = self._tokenizer.encode(text).offsets
        return text[: offsets[min(tokens, len(offsets)) - 1][1]]


def main() -> int:
    parser = arguments.parser("bench.agent", __doc__, rounds=3, model=None, shown="2 layers")
    parser.add_argument("--half-billion", action="store_true", help="a model for a GPU")
    parser.add_argument("--turns", type=int, default=20, metavar="N")
    parser.add_argument("--system", type=int, default=8000, metavar="TOKENS")
    parser.add_argument("--result", type=int, default=900, metavar="TOKENS")
    parser.add_argument("--answer", type=int, default=120, metavar="TOKENS")
    parsed = parser.parse_args()
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bh-")))
        copy_without_end(parsed.model or _build(folder, parsed), folder / "model")
        machine = describe_machine()
        print(f"{machine.processor}, {machine.cores} cores, {machine.mlx}; {parsed.turns} turns")
        print(f"of {parsed.result} + {parsed.answer} tokens after {parsed.system}\n")
        try:
            sessions = _measure(folder, parsed)
        except (FailedError, OSError) as error:
            print(f"bench.agent: {error}", file=sys.stderr)
            return 1
    walls = {name: statistics.median(s.wall_s for s in all_) for name, all_ in sessions.items()}
    print("| | session (s) | first turn's first text (s) | later turns', median (s) |")
    print("| --- | ---: | ---: | ---: |")
    for name, all_ in sessions.items():
        first = statistics.median(each.first_s[0] for each in all_)
        later = statistics.median(s for each in all_ for s in each.first_s[1:])
        print(f"| {name} | {walls[name]:.1f} | {first:.2f} | {later:.3f} |")
    print(
        f"\nAgainst {MlxLmServer.name}: {walls[Bulkhead.name] / walls[MlxLmServer.name]:.2f} "
        f"(target {_TARGET}); with swaps against without: "
        f"{walls[_SWAPPED] / walls[Bulkhead.name]:.2f} (target {_SWAP_TARGET})."
    )
    return 0


def _measure(folder: Path, parsed: argparse.Namespace) -> dict[str, list[Session]]:
    sessions: dict[str, list[Session]] = {}
    with ExitStack() as ends:
        ours = Bulkhead(folder / "model", folder / "state", folder / "bulkhead.log")
        ends.callback(ours.stop)
        theirs = MlxLmServer(folder / "model", folder / "server.log")
        ends.callback(theirs.stop)
        other = f"{folder / 'model'}=other"
        swapping = Bulkhead(
            folder / "model", folder / "swapping", folder / "swapping.log", "--model", other
        )
        ends.callback(swapping.stop)
        subjects: list[tuple[str, Server]] = [
            (ours.name, ours),
            (theirs.name, theirs),
            (_SWAPPED, swapping),
        ]
        for _, server in subjects:
            _turn(server.address, server.model, "Good morning.", 8)
        for number in range(parsed.rounds):
            for name, server in subjects:
                words = Words(folder / "model", number)
                session = _session(server, words, parsed, swaps=name == _SWAPPED)
                sessions.setdefault(name, []).append(session)
                print(f"{name}: {session.wall_s:.1f} s", file=sys.stderr)
    return sessions


def _session(server: Server, words: Words, parsed: argparse.Namespace, *, swaps: bool) -> Session:
    prompt = words.take(parsed.system)
    session = Session([], [])
    for turn in range(parsed.turns):
        if swaps and turn:
            _order(server.address, server.model, "unload")
            _turn(server.address, "other", "Good morning.", 8)
            _order(server.address, "other", "unload")
        prompt += words.take(parsed.result)
        first_s, turn_s, answer = _turn(server.address, server.model, prompt, parsed.answer)
        session.first_s.append(first_s)
        session.turns_s.append(turn_s)
        prompt += answer
    return session


def _turn(address: Address, model: str, prompt: str, tokens: int) -> tuple[float, float, str]:
    """Seconds until the first text and in all, and the text."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0.0}
    request = urllib.request.Request(
        f"http://{address[0]}:{address[1]}/v1/completions",
        json.dumps({**body, "stream": True}).encode(),
        {"Content-Type": "application/json"},
    )
    began = time.perf_counter()
    first_s = 0.0
    text = ""
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            frame = json.loads(line[6:])
            if "error" in frame:
                raise FailedError(str(frame["error"]))
            for choice in frame["choices"]:
                text += choice.get("text") or ""
            first_s = first_s or time.perf_counter() - began
    return first_s, time.perf_counter() - began, text


def _order(address: Address, model: str, verb: str) -> None:
    url = f"http://{address[0]}:{address[1]}/admin/v1/models/{model}/{verb}"
    request = urllib.request.Request(url, b'{"wait": true}', {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=_PATIENCE_S).read()


def _build(folder: Path, parsed: argparse.Namespace) -> Path:
    build = build_half_billion_model if parsed.half_billion else build_agent_model
    build(DEMO_FOLDER, folder / "built")
    return folder / "built"


if __name__ == "__main__":
    sys.exit(main())
