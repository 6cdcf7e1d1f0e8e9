"""A worker process that an earlier gateway has started: no child, so nobody here can reap it."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from gateway.system.lane import start_thread
from gateway.system.processes import ProcessGoneError, ProcessIdentity, alive, send
from gateway.workers.output import Output
from gateway.workers.process import ExitStatus, copy_lines
from gateway.workers.records import WorkerRecords
from gateway.workers.worker_log import WorkerLog
from protocol.process_exit import ProcessExit

logger = logging.getLogger(__name__)

_WAIT_S: Final = 60.0


class AdoptedProcess:
    """Its end is told by the kernel; with which status, only its parent ever learns. Whoever is its
    parent now reaps it: the gateway before this one as long as that is there, and init after it.
    """

    def __init__(
        self,
        identity: ProcessIdentity,
        output: int,
        log: WorkerLog,
        records: WorkerRecords,
        on_exit: Callable[[ExitStatus], None],
    ) -> None:
        """`output` is what it prints to; it is read once `read_output` says so. `on_exit` is called
        from a thread.

        Raises:
            ProcessGoneError: it has ended.
            OSError: there is no thread, or no descriptor, for it.
        """
        self.log = log
        self.identity = identity
        self._descriptor = output
        self._output: Output | None = None
        self._log_thread: threading.Thread | None = None
        self._records = records
        self._on_exit = on_exit
        self._left = False
        self._exit = ProcessExit(identity.pid)
        # In this order: what is watched is then known to be this very process.
        if not self._exit.watched or not alive(identity):
            self._exit.close()
            raise ProcessGoneError(f"process {identity.pid} has ended")
        start_thread(self._wait, f"exit-{identity.pid}")

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def output(self) -> int:
        """The descriptor that it prints to."""
        return self._descriptor

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process; after its end this does nothing."""
        send(self.identity, number)

    def read_output(self, begun: bytes) -> None:
        """From now on, nobody else does; `begun` is what was read of a line already."""
        if self._output is None:
            self._output = Output(self._descriptor, begun)
            output = self._output
            self._log_thread = start_thread(
                lambda: copy_lines(output, lambda: self.log, self.pid), f"log-{self.pid}"
            )

    def leave(self) -> bytes:
        """Another gateway has it: what was read of a line that has not ended."""
        self._left = True
        if self._output is None or self._log_thread is None:
            return b""
        self._output.stop()
        self._log_thread.join(timeout=1.0)
        return self._output.rest

    def _wait(self) -> None:
        while not self._exit.comes_within(_WAIT_S):
            if self._left:
                self._exit.close()
                return
        self._exit.close()
        if self._left:
            return
        if self._output is None:
            os.close(self._descriptor)
        self._records.remove(self.pid)
        if self._log_thread is not None:
            self._log_thread.join(timeout=0.5)
        self._on_exit(ExitStatus(code=None, signal=None))
