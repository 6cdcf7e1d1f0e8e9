"""A pull's process, and what it says."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from gateway.library.hub_process import (
    GO,
    HubError,
    HubFailure,
    HubMessage,
    Planned,
    Progressed,
    PullFinished,
    PullJob,
    decode_message,
)
from gateway.library.hub_program import Download
from tests.support.hub import Chaos, Hub, digest

NAME = "org/model"
# Of a connection that is to be found stalled.
STALL_S = 0.5
FOLDER = "models--org--model"
# Of the files of a repository, what a model is loaded from.
WANTED = {
    "config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "empty.txt",
    *(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)),
}
CONFIG = b'{"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64}'


def model_files(seed: int = 1, shards: int = 3, shard_bytes: int = 700_000) -> dict[str, bytes]:
    """What a repository of the hub has; the weights are noise."""
    noise = random.Random(seed)
    weights = {
        f"model-0000{number}-of-0000{shards}.safetensors": noise.randbytes(shard_bytes + number)
        for number in range(1, shards + 1)
    }
    return {
        "config.json": CONFIG,
        "tokenizer.json": b'{"version": "1.0"}',
        "README.md": b"# A model",
        "chat_template.jinja": b"{{ messages }}",
        "empty.txt": b"",
        "modeling.py": b"raise SystemExit",
        **weights,
    }


class Puller:
    """The process. What it leaves in the environment's way is a cache of the test's own."""

    def __init__(
        self, cache: Path, environment: dict[str, str] | None = None, **order: Any
    ) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "gateway.library.hub_program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "HF_HUB_CACHE": str(cache), **(environment or {})},
        )
        self.messages: list[HubMessage] = []
        self.write(msgspec.json.encode(_order(order)) + b"\n")

    def write(self, line: bytes) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line)
        self.popen.stdin.flush()

    def next(self) -> HubMessage | None:
        """None: it has ended."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            return None
        self.messages.append(decode_message(line))
        return self.messages[-1]

    def plan(self) -> Planned:
        while True:
            message = self.next()
            assert isinstance(message, Planned | Progressed), message
            if isinstance(message, Planned):
                return message

    def accept(self) -> None:
        self.write(GO)

    def until(self, done_bytes: int) -> None:
        """Until so much is there, or it has ended."""
        while message := self.next():
            if isinstance(message, Progressed) and message.done_bytes >= done_bytes:
                return

    def end(self) -> PullFinished | HubFailure:
        """Agrees to what it plans, and waits for its last word."""
        while message := self.next():
            if isinstance(message, Planned):
                self.accept()
        last = self.messages[-1]
        assert isinstance(last, PullFinished | HubFailure), self.messages
        assert self.popen.wait() == isinstance(last, HubFailure)
        return last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.popen.kill()
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Here:
    """The same without a process, for what needs none: `message` has all that it says."""

    def __init__(
        self, cache: Path, planned: Callable[[], None] = lambda: None, **order: Any
    ) -> None:
        """`planned` is called when there is a plan, which is agreed to then."""
        self.messages: list[HubMessage] = []
        self._pull = Download(_order(order), cache, self.messages.append, planned)

    def run(self) -> PullFinished | HubFailure:
        try:
            return self._pull.run()
        except HubError as error:
            return error.failure

    @property
    def plan(self) -> Planned:
        return next(message for message in self.messages if isinstance(message, Planned))


def pull(cache: Path, **order: Any) -> PullFinished | HubFailure:
    """One from beginning to end."""
    return Here(cache, **order).run()


def pull_by_process(
    cache: Path, environment: dict[str, str] | None = None, **order: Any
) -> PullFinished | HubFailure:
    """The same in a process with variables of its own."""
    with Puller(cache, environment, **order) as puller:
        return puller.end()


def _order(fields: dict[str, Any]) -> PullJob:
    # The hub is near, and it shares the machine with whoever else computes.
    return PullJob(**{"model": NAME, "pause_s": 0.01, **fields})


def left(cache: Path) -> list[str]:
    """All files there are."""
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if not path.is_dir())


def check_whole(cache: Path, files: dict[str, bytes] | None = None) -> None:
    """The right bytes, where every tool of the hub finds them, and nothing else."""
    files = files or model_files()
    folder = cache / FOLDER
    commit = (folder / "refs" / "main").read_text()
    snapshot = folder / "snapshots" / commit
    assert {path.name for path in snapshot.iterdir()} == WANTED
    for name in WANTED:
        assert (snapshot / name).read_bytes() == files[name], name
        assert (snapshot / name).resolve() == folder / "blobs" / digest(name, files[name])
    assert [path.name for path in (folder / "refs").iterdir()] == ["main"]
    assert not list(folder.rglob("*.incomplete"))


def survive(cache: Path, kills: int, faults: int, seed: int, shard_bytes: int) -> None:
    """So many SIGKILLs at any time, and as many resets, stalls and lies between them."""
    draw = random.Random(seed)
    files = model_files(seed, shard_bytes=shard_bytes)
    with Hub({NAME: files}) as hub:
        hub.plan = Chaos(faults, seed)
        hub.rate = 4e6
        for _ in range(kills):
            with Puller(cache, endpoint=hub.url, stall_s=STALL_S) as puller:
                puller.plan()
                puller.accept()
                puller.until(draw.randrange(3 * shard_bytes))
                # Between two of its words, or in the middle of one.
                time.sleep(draw.random() * 0.1)
                puller.popen.kill()
        hub.rate = None
        done = pull(cache, endpoint=hub.url, stall_s=STALL_S)
        assert isinstance(done, PullFinished), done
    check_whole(cache, files)
