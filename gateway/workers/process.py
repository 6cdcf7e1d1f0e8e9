"""The process of a worker, started here or adopted from an earlier gateway: its signals, its end
and its output.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

import gateway
from gateway.system.child import Child, ExitStatus
from gateway.system.lane import start_thread
from gateway.system.memory import BackEnd, back_end
from gateway.system.processes import ProcessGoneError, ProcessIdentity, alive, identify, send
from gateway.workers.orphans import WorkerRecord, WorkerRecords
from gateway.workers.worker_log import OutputPipe, ProcessLog, WorkerLog
from protocol.process import ProcessExit

WORKER: Final = Path(gateway.__file__).resolve().parent.parent / "worker" / "__main__.py"

# Workers never ask a model hub.
_SET: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
# By default glibc keeps freed buffers, up to the largest size that was ever freed. That fragmented
# the heap, which then held a third more memory than MLX. A threshold that is set at the start stays
# (mallopt(3)). The threshold isn't set with CUDA: weights come through such buffers to the card's
# own memory, and reading them took a third longer when each buffer came new from the system.
_GIVEN_BACK: Final = {"MALLOC_MMAP_THRESHOLD_": "131072"}
# The variables that are passed to workers: those by which programs find their files, and those of
# MLX and its device, CUDA, tokenizers and Python. A model's files decide which code its worker
# runs, and that code must not read other variables: the admin key, headers of collectors, and
# perhaps secrets of a shell.
_PASSED: Final = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|TMP|TEMP|TERM|TZ|TZDIR|LANG|LANGUAGE|VIRTUAL_ENV"
    r"|BULKHEAD_DEVICE|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|(?i:(https?|all|no)_proxy)|__CF_USER_TEXT_ENCODING"
    r"|(LC|XDG|CONDA|PYTHON|LD|DYLD|MALLOC|GLIBC|OMP|KMP|MKL|OPENBLAS|VECLIB|OBJC|OS_ACTIVITY"
    r"|MLX|METAL|MTL|CUDA|CUDNN|CUBLAS|CUFFT|NVIDIA|NVRTC|NCCL|UCX|HF|HUGGINGFACE|TRANSFORMERS"
    r"|TOKENIZERS|COVERAGE)(_.*|[A-Z]+)"
)
_SECRETS: Final = re.compile(r"(^|_)(TOKENS?|KEYS?|SECRETS?|PASSWORDS?|CREDENTIALS?|AUTH)(_|$)")
# Fast synchronization strands wired memory when its process dies (mlx#3830).
_REMOVED: Final = "MLX_METAL_FAST_SYNCH"


def worker_environment(*, foreign: bool = False) -> dict[str, str]:
    """The environment variables of a worker that this process starts. A `foreign` program gets no
    settings that are meant for our own.
    """
    if foreign:
        return {name: value for name, value in os.environ.items() if _passed(name)}
    settings = _SET if back_end() is BackEnd.CUDA else _SET | _GIVEN_BACK
    return {name: value for name, value in os.environ.items() if _passed(name)} | settings


def _passed(name: str) -> bool:
    known = _PASSED.fullmatch(name) and not _SECRETS.search(name)
    return bool(known) and name != _REMOVED


logger = logging.getLogger(__name__)


class ProcessOrder(Struct, frozen=True, kw_only=True):
    """An order to start the worker program with these arguments.

    The machine that starts the process adds the interpreter (or takes `python`, a path there),
    `--parent` with the starter's pid, and the variables that all workers get; `environment`
    overrides those. `secret` goes to the process by standard input, as other processes can read
    environments and arguments. `name` is the process's model or purpose, for people. With `mark`
    the process guards the server of a command, whose processes have this mark.
    """

    name: str
    incarnation: int
    arguments: tuple[str, ...]
    secret: bytes
    environment: dict[str, str] = {}
    python: str | None = None
    mark: str | None = None


# The wait for the last lines is short, as a grandchild may hold the pipe open.
_DRAIN_S: Final = 0.5
# The longest wait until the output isn't read any more.
_STOP_S: Final = 1.0


class WorkerProcess:
    """A worker's process that was started here."""

    def __init__(
        self,
        order: ProcessOrder,
        log: ProcessLog,
        records: WorkerRecords,
        on_exit: Callable[[ExitStatus], None],
    ) -> None:
        """Start the process. `on_exit` is called from a thread. `log` may be replaced later.

        Raises:
            OSError: the interpreter, or a thread, can't be started. Then there is neither a process
                nor a record of one.
        """
        self.log = log
        self._order = order
        self._records = records
        self._on_exit = on_exit
        self._output: OutputPipe | None = None
        self._child = Child(
            [
                order.python or sys.executable,
                *("-P", "-u", str(WORKER)),
                *("--parent", str(os.getpid())),
                *order.arguments,
            ],
            f"worker-{order.incarnation}",
            environment={
                **worker_environment(foreign=order.mark is not None),
                **order.environment,
            },
            read=self._copy_output,
            on_start=self._record,
            on_exit=self._ended,
            drain_s=_DRAIN_S,
        )
        self._child.send(order.secret, last=True)

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process. After its end this does nothing."""
        self._child.signal(number)

    @property
    def identity(self) -> ProcessIdentity:
        """Raises: ProcessGoneError, OSError."""
        return identify(self.pid)

    @property
    def output(self) -> int:
        """The descriptor from which the process's output is read."""
        assert self._output is not None
        return self._output.descriptor

    def hand_over(self) -> bytes:
        """Leave the process's output to another gateway. Returns the part of an unfinished line
        that was read. The process is still reaped here.
        """
        self._on_exit = lambda _: None
        if self._output is None:
            return b""
        self._output.stop()
        self._child.wait_for_last_line(_STOP_S)
        return self._output.rest

    def _record(self, pid: int) -> None:
        self.pid = pid
        # Without its record a worker is missed only if the gateway is killed.
        with contextlib.suppress(ProcessGoneError, OSError):
            self._records.add(WorkerRecord(identify(pid), self._order.name, self._order.mark))
        self.log.mark_start(pid, self._order.incarnation)

    def _copy_output(self, stdout: IO[bytes]) -> None:
        self._output = OutputPipe(os.dup(stdout.fileno()))
        stdout.close()
        copy_lines(self._output, lambda: self.log, self.pid)

    def _ended(self, status: ExitStatus) -> None:
        self._records.remove(self.pid)
        self._on_exit(status)


def copy_lines(output: OutputPipe, log: Callable[[], ProcessLog], pid: int) -> None:
    """Add the lines of a process to its log. Blocks until the process has ended, or another gateway
    reads the output.
    """
    failed = False
    for line in output.lines():
        try:
            log().add(line)
        except Exception:
            # Reading goes on, as a full pipe would stop the worker.
            if not failed:
                logger.exception("Lines of worker %d are lost", pid)
            failed = True


_WAIT_S: Final = 60.0


class AdoptedProcess:
    """A worker's process that an earlier gateway has started. The kernel reports the end to any
    process, but the exit status only to the parent, which reaps the worker: the earlier gateway, or
    init once that gateway has ended.
    """

    def __init__(
        self,
        identity: ProcessIdentity,
        output: int,
        log: WorkerLog,
        records: WorkerRecords,
        on_exit: Callable[[ExitStatus], None],
    ) -> None:
        """Watch the process. `output` is the descriptor of its output, which isn't read before
        `read_output` is called. `on_exit` is called from a thread.

        Raises:
            ProcessGoneError: the process has ended.
            OSError: the system has no thread or no descriptor left.
        """
        self.log = log
        self.identity = identity
        self._descriptor = output
        self._output: OutputPipe | None = None
        self._log_thread: threading.Thread | None = None
        self._records = records
        self._on_exit = on_exit
        self._left = False
        self._exit = ProcessExit(identity.pid)
        # The identity is checked after the watch has begun, so the watched process is known to be
        # this one.
        if not self._exit.watched or not alive(identity):
            self._exit.close()
            raise ProcessGoneError(f"process {identity.pid} has ended")
        start_thread(self._wait, f"exit-{identity.pid}")

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def output(self) -> int:
        """The descriptor from which the process's output is read."""
        return self._descriptor

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process. After its end this does nothing."""
        send(self.identity, number)

    def read_output(self, begun: bytes) -> None:
        """Read the output from now on. `begun` is the part of a line that was read already."""
        if self._output is None:
            self._output = OutputPipe(self._descriptor, begun)
            output = self._output
            self._log_thread = start_thread(
                lambda: copy_lines(output, lambda: self.log, self.pid), f"log-{self.pid}"
            )

    def hand_over(self) -> bytes:
        """Leave the process to another gateway. Returns the part of an unfinished line that was
        read.
        """
        self._left = True
        if self._output is None or self._log_thread is None:
            return b""
        self._output.stop()
        self._log_thread.join(timeout=_STOP_S)
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
            self._log_thread.join(timeout=_DRAIN_S)
        self._on_exit(ExitStatus(code=None, signal=None))
