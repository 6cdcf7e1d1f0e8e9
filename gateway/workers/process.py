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

from gateway.system.lane import start_thread
from gateway.system.processes import ProcessGoneError, ProcessIdentity, identify
from gateway.workers.output import Output
from gateway.workers.program import WORKER, worker_environment
from gateway.workers.records import WorkerRecord, WorkerRecords
from gateway.workers.worker_log import ProcessLog

logger = logging.getLogger(__name__)


class ExitStatus(Struct, frozen=True):
    """How a process ended: by itself with a code, or by a signal. Neither: nobody here knows, as
    an earlier gateway has started it.
    """

    code: int | None
    signal: str | None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"signal {self.signal}"
        return "an unknown status" if self.code is None else f"exit code {self.code}"


class ProcessOrder(Struct, frozen=True, kw_only=True):
    """A worker's process that is to be started: the worker's program with these arguments.

    Whoever starts it adds what only that machine can know: the interpreter unless `python` names
    one there, `--parent` with its own pid, and the environment that every worker has, in which
    `environment` comes last. `secret` is what the process reads on standard input: other processes
    can read environments and arguments. `name` says to people what it is for.
    """

    name: str
    incarnation: int
    arguments: tuple[str, ...]
    secret: bytes
    environment: dict[str, str] = {}
    python: str | None = None


class WorkerProcess:
    """A running worker. A thread waits for its end, so there is always somebody who reaps it.

    The reaper and the log reader are threads because that works the same on every system, and
    keeps pipes and disks away from the event loop.
    """

    def __init__(
        self,
        order: ProcessOrder,
        log: ProcessLog,
        records: WorkerRecords,
        on_exit: Callable[[ExitStatus], None],
    ) -> None:
        """Start it; `on_exit` is called from a thread. `log` may be replaced later.

        Raises:
            OSError: the interpreter, or a thread for it, can't be started. Then there is neither a
                process nor a record of one.
        """
        self.log = log
        self._records = records
        self._on_exit = on_exit
        self._output: Output | None = None
        # Before the process, so that there never is one that nobody reads or reaps; None: there
        # is none.
        begun: Future[subprocess.Popen[bytes] | None] = Future()
        try:
            self._log_thread = start_thread(lambda: self._read(begun), f"log-{order.incarnation}")
            start_thread(lambda: self._reap(begun), f"reap-{order.incarnation}")
            self._popen = _start(order)
        except BaseException:
            begun.set_result(None)
            raise
        # A record that can't be made is missed only if the gateway is killed.
        with contextlib.suppress(ProcessGoneError, OSError):
            records.add(WorkerRecord(identify(self.pid), order.name))
        log.begin(self.pid, order.incarnation)
        begun.set_result(self._popen)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process; after its end this does nothing, as Popen remembers the reaping."""
        self._popen.send_signal(number)

    @property
    def identity(self) -> ProcessIdentity:
        """Raises: ProcessGoneError, OSError."""
        return identify(self.pid)

    @property
    def output(self) -> int:
        """The descriptor that it prints to."""
        assert self._output is not None
        return self._output.descriptor

    def leave(self) -> bytes:
        """Another gateway has it: what was read of a line that has not ended. It is still reaped
        here.
        """
        self._on_exit = _nobody_asks
        if self._output is None:
            return b""
        self._output.stop()
        self._log_thread.join(timeout=1.0)
        return self._output.rest

    def _read(self, begun: Future[subprocess.Popen[bytes] | None]) -> None:
        popen = begun.result()
        if popen is None or popen.stdout is None:
            return
        with popen.stdout:
            self._output = Output(os.dup(popen.stdout.fileno()))
        copy_lines(self._output, lambda: self.log, popen.pid)

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


def copy_lines(output: Output, log: Callable[[], ProcessLog], pid: int) -> None:
    """Blocks until the process has ended, or its output is somebody else's."""
    failed = False
    for line in output.lines():
        try:
            log().add(line)
        except Exception:
            # Whoever stops reading stops the worker as soon as the pipe is full.
            if not failed:
                logger.exception("Lines of worker %d are lost", pid)
            failed = True


def _nobody_asks(_: ExitStatus) -> None:
    return


def _start(order: ProcessOrder) -> subprocess.Popen[bytes]:
    # Absolute path, no cwd, close_fds off: CPython then uses posix_spawn on macOS, where a
    # forked child of a process with threads may deadlock. Python's descriptors aren't
    # inheritable anyway (PEP 446). The process group stays ours: launchd kills what is left
    # of it when the gateway is gone.
    popen = subprocess.Popen(
        [
            order.python or sys.executable,
            *("-P", "-u", str(WORKER)),
            *("--parent", str(os.getpid())),
            *order.arguments,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**worker_environment(), **order.environment},
        close_fds=False,
    )
    if popen.stdin is not None:
        # It may have ended already; an empty pipe takes a secret without waiting.
        with contextlib.suppress(BrokenPipeError), popen.stdin as stdin:
            stdin.write(order.secret)
    return popen


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
