"""The process of a pull, and its messages. The gateway starts the process, or a command if no
gateway runs.

Each message is a line of JSON. The process ends when its standard input ends, so it never outlives
the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from gateway.system.lane import start_thread

# The reasons why a pull fails.
Code: TypeAlias = Literal[
    "not_found",
    "not_allowed",
    "no_model",
    "busy",
    "offline",
    "unreachable",
    "disk_full",
    "wrong_bytes",
    "insufficient_memory",
    "broken",
]


class PullJob(Struct, frozen=True):
    """The order to pull a model: the first line of the input. If `folder` is given, the model is
    copied from there, and the hub isn't asked.

    A connection is given up after `stall_s` without a byte. The first pause before another
    connection is `pause_s`. The pull is given up after `patience_s` without a byte. If the hub has
    never answered, the pull is given up after `answer_s` already, unless it `goes_on` with an
    earlier pull.
    """

    model: str
    endpoint: str | None = None
    folder: str | None = None
    stall_s: float = 30.0
    pause_s: float = 1.0
    patience_s: float = 1800.0
    answer_s: float = 20.0
    goes_on: bool = False


# The second line of the input, which accepts the plan.
GO: Final = b"go\n"


class Planned(Struct, frozen=True, tag="planned"):
    """The plan of a pull. After this message the process waits for `GO`. `config` is the model's
    config.json. `element_bytes` is the size of the weights' most common floating-point type.
    """

    repository: str
    commit: str
    files: int
    total_bytes: int
    missing_bytes: int
    free_bytes: int
    config: dict[str, Any]
    weight_bytes: int
    element_bytes: int


class Progressed(Struct, frozen=True, tag="progressed"):
    """How far the pull is. `trouble` says why no bytes arrive now; None: bytes arrive."""

    done_bytes: int
    total_bytes: int
    bytes_per_s: float | None
    seconds_left: float | None
    trouble: str | None = None


class PullFinished(Struct, frozen=True, tag="finished"):
    """The pull has succeeded: all files have arrived, with the right content."""

    repository: str
    commit: str
    folder: str


class PullFailed(Struct, frozen=True, tag="failed"):
    """The pull has failed. `message` is for people: what has failed, why, and what to do."""

    code: Code
    message: str


Said: TypeAlias = Planned | Progressed | PullFinished | PullFailed
decode_said: Final = msgspec.json.Decoder(Said).decode


# What helps where the hub can't be reached.
ELSEWHERE: Final = (
    "Is there a network? hub.endpoint, or HF_ENDPOINT where the gateway is started, names another "
    "hub, and hub.folder a folder to copy models from."
)


class PullError(Exception):
    """A pull ends without a model."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message


# The organization that quantizes most models for MLX, each quantization as a repository.
COMMUNITY: Final = "mlx-community"
_PREFIXES: Final = (
    "https://huggingface.co/",
    "http://huggingface.co/",
    "https://hf.co/",
    "huggingface.co/",
    "hf.co/",
)
# The names that the hub allows (huggingface_hub's validate_repo_id), always with an owner.
_NAME: Final = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
_REFERENCE: Final = re.compile(rf"({_NAME}/{_NAME})(?::([\w.-]+))?", re.ASCII)
_LONGEST: Final = 96


class Reference(Struct, frozen=True):
    """A model of the hub. `quantization` is as the user wrote it: 4bit, 8bit, bf16, 4bit-DWQ."""

    repository: str
    quantization: str | None = None

    def __str__(self) -> str:
        suffix = "" if self.quantization is None else f":{self.quantization}"
        return self.repository + suffix

    @property
    def candidates(self) -> tuple[str, ...]:
        """The repositories that the user may mean, the likeliest first.

        For MLX each quantization is a repository, neither a file nor a branch. The name of the
        repository ends with the quantization, and its owner is mostly mlx-community.
        """
        if self.quantization is None:
            return (self.repository,)
        suffix = f"-{self.quantization}"
        name = self.repository.rpartition("/")[2]
        own = f"{self.repository}{suffix}"
        whole = (self.repository,) if name.lower().endswith(suffix.lower()) else ()
        return tuple(dict.fromkeys((*whole, own, f"{COMMUNITY}/{name}{suffix}")))


def parse_reference(text: str) -> Reference:
    """The model of the hub that `text` names or has the address of.

    Raises:
        ValueError: `text` names no model. The message is a sentence with examples.
    """
    bare = text.strip()
    for prefix in _PREFIXES:
        if bare.startswith(prefix):
            bare = bare.removeprefix(prefix).removesuffix("/").removesuffix("/tree/main")
    found = _REFERENCE.fullmatch(bare)
    if found is None or "--" in found[1] or ".." in found[1] or len(found[1]) > _LONGEST:
        owner = "" if "/" in bare else f" Name its owner, too: {COMMUNITY}/{bare}?"
        raise ValueError(
            f"{text!r} is no model of the hub: expected OWNER/NAME or OWNER/NAME:QUANT, as "
            f"{COMMUNITY}/Qwen3-4B-4bit or Qwen/Qwen3-4B:4bit.{owner if bare else ''}"
        )
    return Reference(found[1], found[2])


_LAST_LINES: Final = 5
# After this number of deaths without a byte between them no other process is started.
_MOST_DEATHS: Final = 5


class PullProcess:
    """One process of a pull. A thread reads the messages of the process, and reaps it."""

    def __init__(
        self, order: PullJob, on_said: Callable[[Said], None], on_end: Callable[[str], None]
    ) -> None:
        """The thread calls `on_said` with each message. At the end of the process it calls `on_end`
        once, with a text that says how the process ended.

        Raises:
            OSError: no process or no thread can be started.
        """
        self._on_said = on_said
        self._on_end = on_end
        # The thread starts first, so that each process has a thread that reaps it. None tells the
        # thread that no process was started.
        begun: Future[subprocess.Popen[bytes] | None] = Future()
        start_thread(lambda: self._read(begun), "pull")
        try:
            self._popen = _start()
        except BaseException:
            begun.set_result(None)
            raise
        self._write(msgspec.json.encode(order) + b"\n")
        begun.set_result(self._popen)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def agree(self) -> None:
        """Accept the plan of the process."""
        self._write(GO)

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        self._popen.kill()

    def _write(self, line: bytes) -> None:
        # The process may have ended. The pipe takes these few lines without a wait.
        stdin = self._popen.stdin
        with contextlib.suppress(BrokenPipeError, ValueError):
            if stdin is not None:
                stdin.write(line)
                stdin.flush()

    def _read(self, begun: Future[subprocess.Popen[bytes] | None]) -> None:
        popen = begun.result()
        if popen is None or popen.stdout is None:
            return
        other: deque[str] = deque(maxlen=_LAST_LINES)
        for line in popen.stdout:
            try:
                said = decode_said(line)
            except msgspec.MsgspecError:
                # The line is of a traceback, as stderr is the same pipe.
                other.append(line.decode("utf-8", "replace").rstrip())
                continue
            self._on_said(said)
        code = popen.wait()
        popen.stdout.close()
        if popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                popen.stdin.close()
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        self._on_end(": ".join((how, *filter(None, [" / ".join(other)]))))


class Deaths:
    """Counts how often the process of a pull has died since the last bytes arrived."""

    def __init__(self) -> None:
        self._deaths = 0
        self._done_bytes = 0

    def another(self, done_bytes: int) -> bool:
        """Count a death, at which `done_bytes` were done. True: start another process."""
        self._deaths = 1 if done_bytes > self._done_bytes else self._deaths + 1
        self._done_bytes = done_bytes
        return self._deaths < _MOST_DEATHS


def _start() -> subprocess.Popen[bytes]:
    # With close_fds=False Python starts the process by posix_spawn on macOS, as it does workers.
    return subprocess.Popen(
        [sys.executable, "-P", "-u", "-m", "gateway.library.puller"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(os.environ),
        close_fds=False,
    )
