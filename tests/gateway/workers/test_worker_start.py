"""A worker's process without threads or descriptors: started whole or not at all, and ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest
import zmq

from gateway.system.child import ExitStatus
from gateway.system.state_dir import StateDir
from gateway.workers import shutdown_steps
from gateway.workers.link import Link
from gateway.workers.orphans import WorkerRecords
from gateway.workers.process import ProcessOrder, WorkerProcess
from gateway.workers.worker import Worker
from gateway.workers.worker_log import WorkerLog
from protocol.messages import WorkerMessage
from tests.support.faults import no_threads, wrapped_python
from tests.support.folders import short_folder
from tests.support.gateway import eventually, gone
from tests.support.limits import limited_user, no_descriptors

pytestmark = pytest.mark.processes


class Witness:
    """Who is told what a worker does."""

    def __init__(self) -> None:
        self.statuses: list[ExitStatus] = []
        self.outlived: list[shutdown_steps.ShutdownStep] = []

    def worker_sent(self, worker: Worker, message: WorkerMessage) -> None:
        pass

    def worker_misbehaved(self, worker: Worker, reason: str) -> None:
        raise AssertionError(reason)

    def worker_outgrew(self, worker: Worker, reason: str) -> None:
        raise AssertionError(reason)

    def worker_is_foreign(self, worker: Worker, reason: str) -> None:
        raise AssertionError(reason)

    def worker_outlived(
        self, worker: Worker, step: shutdown_steps.ShutdownStep, seconds: float
    ) -> None:
        self.outlived.append(step)

    def worker_ended(self, worker: Worker, status: ExitStatus) -> None:
        self.statuses.append(status)


class Bench:
    """A state folder and a context, as a gateway has them."""

    def __init__(self, folder: Path) -> None:
        self.state_dir = StateDir(folder / "s")
        self.state_dir.acquire()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.socket(zmq.PAIR).close()
        self.witness = Witness()
        self.records = WorkerRecords(self.state_dir.workers)
        # Of other tests.
        self._strangers = set(psutil.Process().children())

    def start(self, python: str | None = None) -> Worker:
        def process(link: Link, on_exit: Callable[[ExitStatus], None]) -> WorkerProcess:
            log = WorkerLog(self.state_dir.log_path("m"))
            order = ProcessOrder(
                name="m",
                incarnation=1,
                arguments=("--endpoint", link.address, "--incarnation", "1"),
                secret=link.key,
                python=python,
            )
            return WorkerProcess(order, log, self.records, on_exit)

        path = self.state_dir.socket_path(1)
        return Worker(self.context, path, self.witness, process, incarnation=1)

    @property
    def traces(self) -> list[object]:
        """What is left of workers: children, reaped or not, sockets and records."""
        return [
            *(child for child in psutil.Process().children() if child not in self._strangers),
            *self.state_dir.sockets.iterdir(),
            *self.state_dir.workers.iterdir(),
        ]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with short_folder() as folder:
        bench = Bench(Path(folder))
        yield bench
        bench.context.destroy(linger=0)
        bench.state_dir.release()


@pytest.mark.parametrize("threads", [0, 1])
async def test_without_its_threads_nothing_is_started(bench: Bench, threads: int) -> None:
    with no_threads(after=threads), pytest.raises(OSError, match="no thread can be started"):
        bench.start()
    assert bench.traces == []
    assert bench.witness.statuses == []


async def test_without_descriptors_nothing_is_started(bench: Bench) -> None:
    with no_descriptors(os.getpid()), pytest.raises(OSError, match="Too many open files"):
        bench.start()
    assert bench.traces == []


async def test_an_interpreter_that_is_none_leaves_nothing(bench: Bench) -> None:
    for python in ("/nowhere/python", "nul\0"):
        with pytest.raises((OSError, ValueError)):
            bench.start(python)
        assert bench.traces == []


async def test_the_mark_in_the_log_can_do_without_a_thread(bench: Bench) -> None:
    with no_threads(after=2):
        worker = bench.start()
    await asyncio.wait_for(worker.shut_down(shutdown_steps.immediate()), 30)
    assert [status.signal for status in bench.witness.statuses] == ["SIGKILL"]
    assert bench.traces == []


@pytest.mark.parametrize(
    "shortage",
    [lambda: no_descriptors(os.getpid()), no_threads],
    ids=["descriptors", "threads"],
)
async def test_shutdown_sequence_reaches_its_last_step(
    bench: Bench, shortage: Callable[[], AbstractContextManager[None]], tmp_path: Path
) -> None:
    """Of a worker that doesn't hear SIGTERM and has started another process."""
    child = tmp_path / "child"
    python = wrapped_python(
        tmp_path / "bin" / "python", f"trap '' TERM; sleep 600 & echo $! > {child}; exec sleep 600"
    )
    worker = bench.start(python)
    pid = int(await asyncio.to_thread(eventually, lambda: child.exists() and child.read_text()))
    await worker.descendants.look()
    with shortage():
        ending = asyncio.create_task(
            worker.shut_down(
                (
                    shutdown_steps.TimedStep(shutdown_steps.ShutdownStep.TERMINATE, 0.5),
                    shutdown_steps.TimedStep(shutdown_steps.ShutdownStep.KILL, 30),
                )
            )
        )
        async with asyncio.timeout(30):
            await ending
            assert worker.ended.is_set()
    assert bench.witness.outlived == [shutdown_steps.ShutdownStep.TERMINATE]
    assert [status.signal for status in bench.witness.statuses] == ["SIGKILL"]
    await asyncio.to_thread(eventually, lambda: gone(pid))
    assert bench.traces == []


async def test_a_step_that_fails_is_followed_by_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = bench.start()

    def fails(number: signal.Signals) -> None:
        if number is not signal.SIGKILL:
            raise OSError("not now")
        send(number)

    send = worker._process.send_signal
    monkeypatch.setattr(worker._process, "send_signal", fails)
    await asyncio.wait_for(worker.shut_down(shutdown_steps.polite(None)), 30)
    assert [status.signal for status in bench.witness.statuses] == ["SIGKILL"]


def test_python_reports_a_missing_thread_as_this_module_takes_it() -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
from gateway.system.lane import start_thread
try:
    start_thread(print, "one")
except OSError as error:
    print(error)
"""
    done = subprocess.run(
        [*limited_user(), sys.executable, "-c", code], capture_output=True, text=True
    )
    assert "no thread can be started" in done.stdout, done.stderr
