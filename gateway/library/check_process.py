"""The gateway's side of the process that checks a model: its start, its answers and its end.

`worker.errands.check` is the program. Each answer is a line of JSON. The process ends when its
standard input ends, so it never outlives the gateway.
"""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Final, TypeAlias

import msgspec

from gateway.system.child import Child, ExitStatus
from gateway.workers.process import WORKER, worker_environment
from protocol.check import CheckAnswers, Checked, CheckFinding, CheckModel, SectionDone
from protocol.errands import Environment

# The first answer is `Environment`, which has no tag.
CheckMessage: TypeAlias = Environment | CheckFinding | SectionDone | Checked

_decode_environment: Final = msgspec.json.Decoder(Environment).decode
_decode_answer: Final = msgspec.json.Decoder(CheckAnswers).decode
_LONGEST_LINE: Final = 64_000
# A model could make the process answer without end.
_MOST_ANSWERS: Final = 500


class CheckProcess:
    """One process that checks a model."""

    def __init__(
        self,
        order: CheckModel,
        python: str | None,
        on_answer: Callable[[CheckMessage], None],
        on_end: Callable[[str | None], None],
    ) -> None:
        """Start the process with the interpreter `python`, or with this one. A thread calls
        `on_answer` with each answer. After the last answer a thread calls `on_end` once, with a
        text that says how the process failed; None: it ended as it should.

        Raises:
            OSError: no process or no thread can be started.
        """
        self._on_answer = on_answer
        self._on_end = on_end
        self._nonsense: str | None = None
        self._child = Child(
            [python or sys.executable, "-P", str(WORKER), "check"],
            "check",
            environment=worker_environment(),
            stderr=subprocess.PIPE,
            read=self._read,
            on_exit=self._report_end,
        )
        self._child.send(msgspec.json.encode(order) + b"\n")

    @property
    def pid(self) -> int:
        return self._child.pid

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        self._child.signal(signal.SIGKILL)

    def _read(self, stdout: IO[bytes]) -> None:
        decode: Callable[[bytes], CheckMessage] = _decode_environment
        lines = iter(functools.partial(stdout.readline, _LONGEST_LINE), b"")
        for number, line in enumerate(lines):
            try:
                answer = decode(line)
            except msgspec.MsgspecError as error:
                self._nonsense = str(error)
                self.kill()
                return
            decode = _decode_answer
            # The rest is read, too, so that the process doesn't wait for a reader.
            if number < _MOST_ANSWERS or isinstance(answer, Checked):
                self._on_answer(answer)

    def _report_end(self, status: ExitStatus) -> None:
        if self._nonsense is not None:
            self._on_end(f"an answer that isn't one: {self._nonsense}")
            return
        if status.code == 0:
            self._on_end(None)
            return
        last = next(reversed(self._child.last_errors), "")
        self._on_end(f"{status}: {last}" if last else str(status))
