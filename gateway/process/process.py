"""One worker process: started, signalled, reaped, its output read."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future

from msgspec import Struct

from gateway.process.identity import ProcessGoneError, identify
from gateway.process.program import WORKER, worker_environment
from gateway.process.records import WorkerRecord, WorkerRecords
from gateway.process.worker_log import WorkerLog, lines
from gateway.system.threads import start_thread

logger = logging.getLogger(__name__)


class ExitStatus(Struct, frozen=True):
    """How a process ended: by itself with a code, or by a signal."""

    code: int | None
    signal: str | None

    def __str__(self) -> str:
        return f"exit code {self.code}" if self.signal is None else f"signal {self.signal}"


class WorkerProcess:
    """A running worker. A thread waits for its end, so there is always somebody who reaps it.

    The reaper and the log reader are threads because that works the same on every system, and
    keeps pipes and disks away from the event loop.
    """

    def __init__(
        self,
        python: str | None,
        address: str,
        key: bytes,
        incarnation: int,
        log: WorkerLog,
        records: WorkerRecords,
        on_exit: Callable[[ExitStatus], None],
        *,
        name: str,
        spare: bool,
    ) -> None:
        """Start the process; `on_exit` is called from a thread. `log` may be replaced later. `key`
        opens the channel; it goes through a pipe, since other processes can read environments.

        Raises:
            OSError: the interpreter, or a thread for it, can't be started. Then there is neither a
                process nor a record of one.
        """
        self.log = log
        self._records = records
        self._on_exit = on_exit
        # Before the process, so that there never is one that nobody reads or reaps; None: there
        # is none.
        begun: Future[subprocess.Popen[bytes] | None] = Future()
        try:
            self._log_thread = start_thread(lambda: self._read(begun), f"log-{incarnation}")
            start_thread(lambda: self._reap(begun), f"reap-{incarnation}")
            self._popen = _start(python, address, key, incarnation, spare=spare)
        except BaseException:
            begun.set_result(None)
            raise
        # A record that can't be made is missed only if the gateway is killed.
        with contextlib.suppress(ProcessGoneError, OSError):
            records.add(WorkerRecord(identify(self.pid), name))
        log.begin(self.pid, incarnation)
        begun.set_result(self._popen)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process; after its end this does nothing, as Popen remembers the reaping."""
        self._popen.send_signal(number)

    def _read(self, begun: Future[subprocess.Popen[bytes] | None]) -> None:
        popen = begun.result()
        if popen is None or popen.stdout is None:
            return
        failed = False
        for line in lines(popen.stdout):
            try:
                self.log.add(line)
            except Exception:
                # Whoever stops reading stops the worker as soon as the pipe is full.
                if not failed:
                    logger.exception("Lines of worker %d are lost", popen.pid)
                failed = True

    def _reap(self, begun: Future[subprocess.Popen[bytes] | None]) -> None:
        popen = begun.result()
        if popen is None:
            return
        code = popen.wait()
        self._records.remove(self.pid)
        # The last lines explain the exit. A grandchild may hold the pipe open for ever.
        self._log_thread.join(timeout=0.5)
        self._on_exit(
            ExitStatus(code=code, signal=None)
            if code >= 0
            else ExitStatus(code=None, signal=_signal_name(-code))
        )


def _start(
    python: str | None, address: str, key: bytes, incarnation: int, *, spare: bool
) -> subprocess.Popen[bytes]:
    # Absolute path, no cwd, close_fds off: CPython then uses posix_spawn on macOS, where a
    # forked child of a process with threads may deadlock. Python's descriptors aren't
    # inheritable anyway (PEP 446). The process group stays ours: launchd kills what is left
    # of it when the gateway is gone.
    popen = subprocess.Popen(
        [
            python or sys.executable,
            *("-P", "-u", str(WORKER)),
            *("--endpoint", address),
            *("--parent", str(os.getpid())),
            *("--incarnation", str(incarnation)),
            *(("--spare",) if spare else ()),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=worker_environment(),
        close_fds=False,
    )
    if popen.stdin is not None:
        # It may have ended already; an empty pipe takes a key without waiting.
        with contextlib.suppress(BrokenPipeError), popen.stdin as stdin:
            stdin.write(key)
    return popen


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
