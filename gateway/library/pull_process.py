"""A pull's process, from the side of whoever started it: the gateway, or a command without one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import msgspec

from gateway.library.pull_messages import GO, PullJob, Said, decode_said
from gateway.system.lane import start_thread

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
