"""One worker process: started, signalled, reaped, its output read."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO

from msgspec import Struct

from gateway.supervise.identity import ProcessGoneError, identify
from gateway.supervise.program import WORKER, worker_environment
from gateway.supervise.records import WorkerRecord, WorkerRecords
from gateway.supervise.worker_log import WorkerLog, lines


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
        incarnation: int,
        log: WorkerLog,
        records: WorkerRecords,
        on_exit: Callable[[ExitStatus], None],
        *,
        name: str,
        spare: bool,
    ) -> None:
        """Start the process; `on_exit` is called from a thread. `log` may be replaced later.

        Raises:
            OSError: the interpreter can't be started.
        """
        # Absolute path, no cwd, close_fds off: CPython then uses posix_spawn on macOS, where a
        # forked child of a process with threads may deadlock. Python's descriptors aren't
        # inheritable anyway (PEP 446). The process group stays ours: launchd kills what is left
        # of it when the gateway is gone.
        self._popen = subprocess.Popen(
            [
                python or sys.executable,
                *("-P", "-u", str(WORKER)),
                *("--endpoint", address),
                *("--parent", str(os.getpid())),
                *("--incarnation", str(incarnation)),
                *(("--spare",) if spare else ()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=worker_environment(),
            close_fds=False,
        )
        self.log = log
        self._records = records
        with contextlib.suppress(ProcessGoneError):
            records.add(WorkerRecord(identify(self.pid), name))
        self._on_exit = on_exit
        pipe = self._popen.stdout
        if pipe is None:
            raise OSError("the worker's output was not captured")
        log.begin(self.pid, incarnation)
        self._log_thread = threading.Thread(
            target=self._read, args=(pipe,), name=f"log-{self.pid}", daemon=True
        )
        self._log_thread.start()
        threading.Thread(target=self._reap, name=f"reap-{self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process; after its end this does nothing, as Popen remembers the reaping."""
        self._popen.send_signal(number)

    def _read(self, pipe: IO[bytes]) -> None:
        for line in lines(pipe):
            self.log.add(line)

    def _reap(self) -> None:
        code = self._popen.wait()
        self._records.remove(self.pid)
        # The last lines explain the exit. A grandchild may hold the pipe open for ever.
        self._log_thread.join(timeout=0.5)
        self._on_exit(
            ExitStatus(code=code, signal=None)
            if code >= 0
            else ExitStatus(code=None, signal=_signal_name(-code))
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
