"""A pull's process, from the side of whoever started it: the gateway, or a command without one."""

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

# Names that are a file's problem, a person's, or the network's.
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
    """The first line of the input. `folder` is where models lie that are copied instead of asked
    the hub for. Without a byte for `stall_s` a connection is given up; the first pause before
    another is `pause_s`, and after `patience_s` without a byte so is the pull. A hub that has
    not answered at all is given up after `answer_s`, unless this `goes_on` with an earlier pull.
    """

    model: str
    endpoint: str | None = None
    folder: str | None = None
    stall_s: float = 30.0
    pause_s: float = 1.0
    patience_s: float = 1800.0
    answer_s: float = 20.0
    goes_on: bool = False


# The second line, once there is a plan that whoever ordered it agrees with.
GO: Final = b"go\n"


class Planned(Struct, frozen=True, tag="planned"):
    """What a pull would do; it waits for `GO` then. `config` is the model's config.json. Elements
    of the weights' most common floating-point type have `element_bytes`.
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
    """`trouble` is why nothing comes at present."""

    done_bytes: int
    total_bytes: int
    bytes_per_s: float | None
    seconds_left: float | None
    trouble: str | None = None


class PullFinished(Struct, frozen=True, tag="finished"):
    """All files are there, and right."""

    repository: str
    commit: str
    folder: str


class PullFailed(Struct, frozen=True, tag="failed"):
    """`message` is a sentence for people: what, why, and what to do."""

    code: Code
    message: str


Said: TypeAlias = Planned | Progressed | PullFinished | PullFailed
decode_said: Final = msgspec.json.Decoder(Said).decode


class PullError(Exception):
    """Why a pull ends without a model."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message


# Who quantizes most of what MLX can run, each quantization as a repository of its own.
COMMUNITY: Final = "mlx-community"
_PREFIXES: Final = (
    "https://huggingface.co/",
    "http://huggingface.co/",
    "https://hf.co/",
    "huggingface.co/",
    "hf.co/",
)
# What the hub allows (huggingface_hub's validate_repo_id), with an owner always.
_NAME: Final = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
_REFERENCE: Final = re.compile(rf"({_NAME}/{_NAME})(?::([\w.-]+))?", re.ASCII)
_LONGEST: Final = 96


class Reference(Struct, frozen=True):
    """`quantization` is as it was written: 4bit, 8bit, bf16, 4bit-DWQ."""

    repository: str
    quantization: str | None = None

    def __str__(self) -> str:
        suffix = "" if self.quantization is None else f":{self.quantization}"
        return self.repository + suffix

    @property
    def candidates(self) -> tuple[str, ...]:
        """The repositories that it may be, the likeliest first.

        For MLX a quantization is neither a file nor a branch of a repository, but one with its name
        at the end; and of most models they are mlx-community's.
        """
        if self.quantization is None:
            return (self.repository,)
        suffix = f"-{self.quantization}"
        name = self.repository.rpartition("/")[2]
        own = f"{self.repository}{suffix}"
        whole = (self.repository,) if name.lower().endswith(suffix.lower()) else ()
        return tuple(dict.fromkeys((*whole, own, f"{COMMUNITY}/{name}{suffix}")))


def parse_reference(text: str) -> Reference:
    """Addresses of the hub are taken as well, as people copy them.

    Raises:
        ValueError: with a sentence that says what may stand there.
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
# After so many deaths without a byte between them another one is not tried.
_MOST_DEATHS: Final = 5


class PullProcess:
    """Whoever kills it has cancelled it. A thread reads what it says and reaps it."""

    def __init__(
        self, order: PullJob, on_said: Callable[[Said], None], on_end: Callable[[str], None]
    ) -> None:
        """Both are called from the thread; `on_end` once, with how it ended.

        Raises:
            OSError: there is no process, or no thread for it.
        """
        self._on_said = on_said
        self._on_end = on_end
        # Before the process, so that there never is one that nobody reaps; None: there is none.
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
        """Let it begin with what it has planned."""
        self._write(GO)

    def kill(self) -> None:
        """After its end this does nothing."""
        self._popen.kill()

    def _write(self, line: bytes) -> None:
        # It may have ended. A pipe takes some lines without waiting.
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
                # A traceback, which goes the same way.
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
    """How often a pull's process ended without a last word, since there were bytes."""

    def __init__(self) -> None:
        self._deaths = 0
        self._done_bytes = 0

    def another(self, done_bytes: int) -> bool:
        """Whether to start another one after a death with so much done."""
        self._deaths = 1 if done_bytes > self._done_bytes else self._deaths + 1
        self._done_bytes = done_bytes
        return self._deaths < _MOST_DEATHS


def _start() -> subprocess.Popen[bytes]:
    # As workers are started: by posix_spawn on macOS. What runs is what is installed.
    return subprocess.Popen(
        [sys.executable, "-P", "-u", "-m", "gateway.library.puller"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(os.environ),
        close_fds=False,
    )
