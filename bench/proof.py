"""`python -m bench.proof`: how a prompt cache proves itself.

Random prompts are computed in batches and found again, and the cache proves them at once, without
its pauses. The table shows the bounds that were measured for noise, what a proof takes, and how
many prompts were taken for wrong, which should be none. Then blocks are changed: all should be
found. With `--shape 8b` the model has eight billion weights in 4 bits, for a GPU. `--model`
takes a folder of another model.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import mlx.core as mx

from bench.copying import EIGHT_BILLION
from bench.machine import describe_machine
from bench.models import AGENT, random_qwen3
from protocol.life import CacheProven, CacheQuarantined
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, measure
from worker.engines.sequence import Sequence
from worker.load.loading import load
from worker.prompt_cache.blocks import Block, Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.path import BLOCK_TOKENS, Paths
from worker.prompt_cache.proof_plan import Task
from worker.runtime.proof import Proof
from worker.runtime.recomputing import Recomputing
from worker.system.errors import ModelError

_TOGETHER: Final = 8
_VOCABULARY: Final = 1000


class _Subject:
    """A model with its prompt cache, and a proof on a clock that jumps over pauses."""

    def __init__(self, model: Any, kv_bits: int | None) -> None:
        caches = Caches(model, kv_bits)
        cutter = Cutter(caches.run, caches.make)
        self.passed_s = 0.0
        self.quarantined: list[CacheQuarantined] = []
        self.proven: list[CacheProven] = []
        self.cache = PromptCache(cutter, None, self.quarantined.append)
        self._paths = Paths(b"", None, needs_snapshots=cutter.needs_snapshots)
        room = CacheRoom(measure(caches.run, caches.make))
        self._engine = BatchedEngine(caches.model, (), 32, room, self.cache)
        recomputing = Recomputing(self._engine, caches, self.cache, room)
        self.proof = Proof(self.cache, recomputing, self.proven.append, self._now)

    def _now(self) -> float:
        return time.monotonic() + self.passed_s

    def find(self, prompts: list[list[int]]) -> None:
        """Compute the prompts in batches, and then find each in the cache."""
        for _ in range(2):
            for first in range(0, len(prompts), _TOGETHER):
                for number, prompt in enumerate(prompts[first : first + _TOGETHER]):
                    path = self._paths.find(prompt, "", [len(prompt)])
                    self._engine.add(Sequence(f"{number}", prompt, 2, None, True, path=path))
                while self._engine.active + self._engine.waiting:
                    self._engine.step()
                    self._engine.store_blocks()

    def rest(self, is_enough: Callable[[], bool]) -> dict[Task, list[float]]:
        """The seconds of each part of a proof, by its task."""
        seconds: dict[Task, list[float]] = {"memory": [], "disk": [], "content": []}
        while not is_enough():
            self.passed_s += self.proof.quiet_s
            task = self.proof._plan.next(self._now())
            began_at = time.perf_counter()
            self.proof.go_on(lambda: False)
            if task is not None:
                seconds[task].append(time.perf_counter() - began_at)
        return seconds

    def change(self, key: bytes) -> None:
        """Shift a block by a token."""
        self.cache.record_digests(lambda: False)
        entry = self.cache._blocks._entries[key]
        arrays = [mx.roll(array, 1, axis=-2) for array in entry.content.block.arrays]
        mx.eval(arrays)
        content = entry.content._replace(block=Block(tuple(arrays), entry.content.block.structure))
        self.cache._blocks._entries[key] = replace(entry, content=content)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.proof", description=__doc__)
    parser.add_argument("--prompts", type=int, default=24, metavar="N")
    parser.add_argument("--tokens", type=int, default=1200, metavar="N", help="of a prompt")
    parser.add_argument("--changes", type=int, default=50, metavar="N")
    parser.add_argument("--shape", choices=["8b"], help="a large model, for a GPU")
    parser.add_argument("--model", metavar="FOLDER")
    parsed = parser.parse_args()
    print(f"{describe_machine()}; {parsed.prompts} prompts of {parsed.tokens} tokens\n")
    if parsed.model is not None:
        model = load(parsed.model, lambda _done, _total: None, lambda: False).model
    else:
        sizes = EIGHT_BILLION if parsed.shape else AGENT | {"vocab_size": 4096, "head_dim": 64}
        model = random_qwen3(sizes, quantized=parsed.shape is not None)
    print("| caches | largest bounds | proven | a memory part | a content part | wrong | found |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for kv_bits in (None, 8, 4):
        try:
            _print_row(model, kv_bits, parsed)
        except ModelError as error:
            # MLX's CUDA back end has no kernel for quantized caches.
            print(f"| {_named(kv_bits)} | {error.reason} | | | | | |")
    return 0


def _named(kv_bits: int | None) -> str:
    return "full" if kv_bits is None else f"{kv_bits} bits"


def _print_row(model: Any, kv_bits: int | None, parsed: argparse.Namespace) -> None:
    chance = random.Random(1)
    subject = _Subject(model, kv_bits)
    prompts = [
        [chance.randrange(3, _VOCABULARY) for _ in range(parsed.tokens)]
        for _ in range(parsed.prompts)
    ]
    subject.find(prompts)
    tokens = parsed.prompts * ((parsed.tokens - 1) // BLOCK_TOKENS) * BLOCK_TOKENS

    def is_proven() -> bool:
        return sum(message.tokens for message in subject.proven) >= tokens or subject.cache.off

    seconds = subject.rest(is_proven)
    wrong, found = len(subject.quarantined), 0
    bounds = subject.proof._bounds
    distance, divergence = (0.0, 0.0) if bounds is None else bounds.largest
    for _ in range(parsed.changes):
        subject.cache.failures = 0
        subject.quarantined.clear()
        # What went along into quarantine comes again.
        subject.find(prompts[:1])
        subject.change(chance.choice(subject.cache.keys()))
        until = subject.passed_s + 3600.0
        subject.rest(lambda until=until: bool(subject.quarantined) or subject.passed_s > until)
        found += bool(subject.quarantined)
    parts = " | ".join(
        f"{1000 * sum(seconds[task]) / max(1, len(seconds[task])):.0f} ms"
        for task in ("memory", "content")
    )
    blocks = sum(message.blocks for message in subject.proven)
    print(
        f"| {_named(kv_bits)} "
        f"| {distance:.2g}, {divergence:.2g} nats | {tokens:,} tokens, {blocks:,} blocks "
        f"| {parts} | {wrong} | {found} of {parsed.changes} |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
