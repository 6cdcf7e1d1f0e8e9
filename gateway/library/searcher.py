"""The program that searches the hub once. It reads a `SearchJob` from its standard input, and
writes a `SearchAnswer` to its standard output.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from gateway.library.hub import Hub, is_offline
from gateway.library.pull_process import ELSEWHERE, PullError
from gateway.library.search_process import (
    Candidate,
    SearchAnswer,
    SearchFailed,
    SearchFound,
    SearchJob,
    matches,
)
from gateway.library.sources import ModelFolder, TroubleError, UnreachableError

_STALL_S: Final = 10.0


def answer(job: SearchJob) -> SearchAnswer:
    """Search the hub or the folder. Blocks for as long as the source likes."""
    try:
        return SearchFound(tuple(_found(job)))
    except PullError as error:
        return SearchFailed(error.code, error.message)
    except UnreachableError as error:
        return SearchFailed("unreachable", f"{error}. {ELSEWHERE}")
    except TroubleError as error:
        return SearchFailed("unreachable", f"{str(error).rstrip('.')}.", error.retry_after_s)


def _found(job: SearchJob) -> list[Candidate]:
    """Raises: PullError, TroubleError."""
    if job.folder is not None:
        return ModelFolder(Path(job.folder)).search(job.words)
    if is_offline():
        raise PullError(
            "offline", "HF_HUB_OFFLINE is set: unset it, or name a folder with hub.folder."
        )
    hub = Hub(job.endpoint, _STALL_S)
    # The hub may take several words as one text, which few names contain.
    for text in dict.fromkeys((" ".join(job.words), max(job.words, key=len))):
        if found := [each for each in hub.search(text) if matches(job.words, each.repository)]:
            return found
    return []


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=SearchJob)
    # SIGALRM ends the process, also if it hangs in the lookup of a name, or is an orphan by then.
    signal.setitimer(signal.ITIMER_REAL, job.deadline_s)
    sys.stdout.buffer.write(msgspec.json.encode(answer(job)))


if __name__ == "__main__":
    main()
