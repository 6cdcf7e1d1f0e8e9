"""The process of a search on the hub, and its messages. The gateway starts the process, or a
command if no gateway runs.

The process reads a `SearchJob` from its standard input, writes one answer to its standard output,
and ends within the job's deadline.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from gateway.library.pull_process import ELSEWHERE, Code

# The deadline is for a hub that is slow or doesn't answer; the hub answers in a second.
DEADLINE_S: Final = 20.0
# Beyond the deadline of the process, which keeps it by itself.
_GRACE_S: Final = 5.0


_MARKS: Final = re.compile(r"[^a-z0-9.]+")
_PARAMETERS: Final = re.compile(r"[\d.]+[bm]")


class SearchJob(Struct, frozen=True):
    """The order to search. If `folder` is given, that folder is searched, and the hub isn't asked.
    After `deadline_s` SIGALRM ends the process.
    """

    words: tuple[str, ...]
    endpoint: str | None = None
    folder: str | None = None
    deadline_s: float = DEADLINE_S


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


class SearchFound(Struct, frozen=True, tag="found"):
    candidates: tuple[Candidate, ...]


class SearchFailed(Struct, frozen=True, tag="failed"):
    """The search has failed. `message` is for people. The hub has asked to wait `retry_after_s`."""

    code: Code
    message: str
    retry_after_s: float | None = None


SearchAnswer: TypeAlias = SearchFound | SearchFailed
_decode: Final = msgspec.json.Decoder(SearchFound | SearchFailed).decode


class SearchError(Exception):
    """The hub can't be searched. `code` and `retry_after_s` are those of `SearchFailed`."""

    def __init__(self, failed: SearchFailed) -> None:
        super().__init__(failed.message)
        self.message = failed.message
        self.code = failed.code
        self.retry_after_s = failed.retry_after_s


def words_of(text: str) -> tuple[str, ...]:
    return tuple(text.lower().split())


def matches(words: tuple[str, ...], name: str) -> bool:
    """Whether each word is somewhere in the name. A number of parameters must be a whole part of
    the name: 4b is not in Qwen3-8B-4bit.
    """
    parts = parts_of(name)
    return all(
        each in parts if _PARAMETERS.fullmatch(each) else each in name.lower() for each in words
    )


def parts_of(name: str) -> frozenset[str]:
    """The parts of a name between its hyphens and other marks, in small letters."""
    return frozenset(_MARKS.split(name.lower()))


def find_candidates(job: SearchJob) -> tuple[Candidate, ...]:
    """Run the process of a search, and return the repositories in no order. Blocks, but never for
    much longer than the job's deadline.

    Raises:
        SearchError: the hub can't be searched.
        OSError: no process can be started.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "gateway.library.searcher"],
            input=msgspec.json.encode(job),
            capture_output=True,
            env=dict(os.environ),
            # Python starts the process by posix_spawn on macOS, as for pulls.
            close_fds=False,
            timeout=job.deadline_s + _GRACE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SearchError(_silent(job)) from error
    if done.returncode == -signal.SIGALRM:
        raise SearchError(_silent(job))
    try:
        answer: SearchAnswer = _decode(done.stdout)
    except msgspec.MsgspecError as error:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        message = f"The search's process ended with {done.returncode}, and no answer: {last}"
        raise SearchError(SearchFailed("broken", message)) from error
    if isinstance(answer, SearchFailed):
        raise SearchError(answer)
    return answer.candidates


def _silent(job: SearchJob) -> SearchFailed:
    where = job.folder or job.endpoint or "The hub"
    return SearchFailed(
        "unreachable",
        f"{where} did not answer a search within {job.deadline_s:g} s. {ELSEWHERE}",
    )
