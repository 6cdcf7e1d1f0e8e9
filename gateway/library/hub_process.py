"""The gateway's side of the process that asks the hub: its jobs, its messages, its start and end.

`gateway.library.hub_program` is the program. Each message is a line of JSON. The process ends when
its standard input ends, so the process never outlives the one that started it.
"""

from __future__ import annotations

import queue
import signal
import sys
from collections import deque
from collections.abc import Callable
from typing import IO, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from gateway.system.child import Child, ExitStatus

# The reasons why a pull or a search fails.
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


class PullJob(Struct, frozen=True, tag="pull"):
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


# The deadline is for a hub that is slow or doesn't answer; the hub answers in a second.
SEARCH_S: Final = 20.0


class SearchJob(Struct, frozen=True, tag="search"):
    """The order to search. If `folder` is given, that folder is searched, and the hub isn't asked.
    After `deadline_s` SIGALRM ends the process.
    """

    words: tuple[str, ...]
    endpoint: str | None = None
    folder: str | None = None
    deadline_s: float = SEARCH_S


Job: TypeAlias = PullJob | SearchJob

# The second line of the input, which accepts the plan of a pull.
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


class Candidate(Struct, frozen=True, kw_only=True):
    """A repository of the hub; None means that the hub doesn't say. `weight_bytes` is the size of
    the weights. `downloads` counts those of the last 30 days, and `changed_at` is a Unix time in
    seconds. `mlx`: the weights were made for MLX. `gated`: its owner must grant the download.
    `embeds`: the model makes embeddings, and no text. `problem` says why nothing here loads the
    model.
    """

    repository: str
    weight_bytes: int | None = None
    downloads: int | None = None
    changed_at: float | None = None
    mlx: bool = False
    gated: bool = False
    embeds: bool = False
    problem: str | None = None


class SearchResult(Struct, frozen=True, tag="searched"):
    """The answer to a search: the repositories, in no order."""

    candidates: tuple[Candidate, ...]


class HubFailure(Struct, frozen=True, tag="failed"):
    """The job has failed. `message` is for people: what has failed, why, and what to do. The hub
    has asked to wait `retry_after_s`.
    """

    code: Code
    message: str
    retry_after_s: float | None = None


HubMessage: TypeAlias = Planned | Progressed | PullFinished | SearchResult | HubFailure
decode_message: Final = msgspec.json.Decoder(HubMessage).decode


# What helps where the hub can't be reached.
ELSEWHERE: Final = (
    "Is there a network? hub.endpoint, or HF_ENDPOINT where the gateway is started, names another "
    "hub, and hub.folder a folder to copy models from."
)


class HubError(Exception):
    """The hub gives no model, or can't be searched. The fields are those of `HubFailure`."""

    def __init__(self, code: Code, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def failure(self) -> HubFailure:
        return HubFailure(self.code, self.message, self.retry_after_s)


_LAST_LINES: Final = 5


class HubProcess:
    """One process that asks the hub."""

    def __init__(
        self, job: Job, on_message: Callable[[HubMessage], None], on_end: Callable[[str], None]
    ) -> None:
        """A thread calls `on_message` with each message. After the last message a thread calls
        `on_end` once, with a text that says how the process ended.

        Raises:
            OSError: no process or no thread can be started.
        """
        self._on_message = on_message
        self._on_end = on_end
        # Lines that are no messages are of a traceback, as stderr is the same pipe.
        self._other_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._child = Child(
            [sys.executable, "-P", "-u", "-m", "gateway.library.hub_program"],
            "hub",
            read=self._read,
            on_exit=self._report_end,
        )
        self._child.send(msgspec.json.encode(job) + b"\n")

    @property
    def pid(self) -> int:
        return self._child.pid

    def accept(self) -> None:
        """Accept the plan of the process."""
        self._child.send(GO)

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        self._child.signal(signal.SIGKILL)

    def _read(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            try:
                message = decode_message(line)
            except msgspec.MsgspecError:
                self._other_lines.append(line.decode("utf-8", "replace").rstrip())
                continue
            self._on_message(message)

    def _report_end(self, status: ExitStatus) -> None:
        last_lines = " / ".join(self._other_lines)
        self._on_end(f"{status}: {last_lines}" if last_lines else str(status))


_MOST_DEATHS: Final = 5


class PullDeaths:
    """Counts how often the process of a pull has died since the last bytes arrived. After some
    deaths no other process is started.
    """

    def __init__(self) -> None:
        self._deaths = 0
        self._done_bytes = 0

    def may_restart(self, done_bytes: int) -> bool:
        """Count a death, at which `done_bytes` were done. True: start another process."""
        self._deaths = 1 if done_bytes > self._done_bytes else self._deaths + 1
        self._done_bytes = done_bytes
        return self._deaths < _MOST_DEATHS


# Beyond the deadline of a search, which its process keeps by itself.
_GRACE_S: Final = 5.0


def search_hub(job: SearchJob) -> tuple[Candidate, ...]:
    """Search by a process of its own, and return the repositories in no order. Blocks, but never
    for much longer than the job's deadline.

    Raises:
        HubError: the hub can't be searched.
        OSError: no process can be started.
    """
    answers: queue.SimpleQueue[HubMessage | str] = queue.SimpleQueue()
    process = HubProcess(job, answers.put, answers.put)
    try:
        answer = answers.get(timeout=job.deadline_s + _GRACE_S)
    except queue.Empty:
        answer = _ALARM
    finally:
        process.kill()
    match answer:
        case SearchResult(candidates=candidates):
            return candidates
        case HubFailure(code=code, message=message, retry_after_s=retry_after_s):
            raise HubError(code, message, retry_after_s)
        case str(how) if how.startswith(_ALARM):
            raise HubError(
                "unreachable",
                f"{job.folder or job.endpoint or 'The hub'} did not answer a search within "
                f"{job.deadline_s:g} s. {ELSEWHERE}",
            )
        case _:
            raise HubError("broken", f"The search's process ended by {answer}, and no answer came.")


_ALARM: Final = str(ExitStatus.of(-signal.SIGALRM))
