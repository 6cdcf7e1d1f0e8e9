"""Logging of a process, tried in processes: it changes what all of one's code prints."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes


def _run(tmp_path: Path, body: str, *, to_stderr: bool = True) -> tuple[int, str, list[Any]]:
    """Exit status, stderr and the lines of the log of a process that logs and does this."""
    folder = tmp_path / "logs"
    if not folder.exists():
        folder.mkdir()
    program = f"""
import asyncio, logging, os, sys, threading
from pathlib import Path
import pytest

from gateway.system import log_lines as setup
from gateway.system.log_lines import about
from gateway.system.state_dir import StateDir

state_dir = StateDir(Path({str(tmp_path)!r}))
log = logging.getLogger("test")
with setup.gateway_logs(state_dir, ["demo"], "info", to_stderr={to_stderr}):
{textwrap.indent(textwrap.dedent(body), "    ")}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    path = folder / "gateway.log"
    lines = path.read_text().splitlines() if path.is_file() else []
    return done.returncode, done.stderr, [json.loads(line) for line in lines]


def test_the_same_lines_in_the_file_and_on_stderr(tmp_path: Path) -> None:
    status, stderr, lines = _run(
        tmp_path,
        """
        log.info("one %s", "two", extra=about(model="demo"))
        log.debug("not this")
        """,
    )
    assert status == 0
    assert [json.loads(line) for line in stderr.splitlines()] == lines
    assert lines[0]["message"].startswith("Bulkhead ")
    assert (lines[1]["message"], lines[1]["model"], lines[1]["logger"]) == (
        "one two",
        "demo",
        "test",
    )


def test_sentences_from_the_moment_on_that_stderr_is_a_terminal(tmp_path: Path) -> None:
    """As a successor is given the terminal of the gateway before it."""
    status, stderr, _ = _run(
        tmp_path,
        """
        import pty
        log.info("to a pipe")
        controller, terminal = pty.openpty()
        pipe = os.dup(2)
        # Until all that came out of it is written as well.
        setup.logging.getLogger().handlers[-1].queue.join()
        os.dup2(terminal, 2)
        log.info("to a terminal")
        shown = os.read(controller, 4096)
        os.dup2(pipe, 2)
        os.write(2, b"shown: " + shown)
        """,
    )
    assert status == 0
    piped, shown = stderr.split("shown: ")
    assert "to a terminal" in shown
    assert "{" not in shown
    assert json.loads(piped.splitlines()[0])["message"].startswith("Bulkhead ")


def test_failures_of_tasks_and_threads_are_logged(tmp_path: Path) -> None:
    status, stderr, lines = _run(
        tmp_path,
        """
        async def fail():
            raise ValueError("in a task")
        async def main():
            asyncio.create_task(fail())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        asyncio.run(main())
        thread = threading.Thread(target=lambda: 1 / 0, name="divider")
        thread.start()
        thread.join()
        """,
        to_stderr=False,
    )
    assert (status, stderr) == (0, "")
    task, thread = lines[1:]
    assert (task["level"], task["logger"]) == ("error", "asyncio")
    assert task["exception"].endswith("ValueError: in a task")
    assert thread["message"] == "The thread 'divider' failed"
    assert thread["exception"].endswith("ZeroDivisionError: division by zero")


def test_stderr_of_a_service_has_crashes_alone(tmp_path: Path) -> None:
    status, stderr, lines = _run(
        tmp_path,
        """
        log.error("not on stderr")
        raise RuntimeError("the end")
        """,
        to_stderr=False,
    )
    assert status == 1
    assert stderr.startswith("Traceback ")
    assert stderr.endswith("RuntimeError: the end\n")
    assert [line["level"] for line in lines] == ["info", "error", "critical"]
    assert lines[-1]["exception"].endswith("RuntimeError: the end")


def test_a_fatal_signal_leaves_its_stack(tmp_path: Path) -> None:
    status, stderr, _ = _run(tmp_path, "os.abort()", to_stderr=False)
    assert status == -6
    assert stderr.startswith("Fatal Python error: Aborted")


def test_an_unwritable_folder_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    status, stderr, lines = _run(tmp_path, 'log.info("a"); log.info("b")', to_stderr=False)
    assert (status, lines) == (0, [])
    assert stderr.count("\n") == 1
    assert stderr.startswith(f"bulkhead: The log {tmp_path / 'logs' / 'gateway.log'} can't be ")


def test_a_disk_that_hangs_holds_nobody_up_and_what_was_dropped_is_counted(tmp_path: Path) -> None:
    status, _, lines = _run(
        tmp_path,
        """
        hangs = threading.Event()
        writing = threading.Event()
        class Slow:
            def filter(self, record):
                writing.set()
                return hangs.wait(30)
        listener = next(each for each in threading.enumerate() if "_monitor" in each.name)
        listener._target.__self__.handlers[0].addFilter(Slow())
        log.info("the first hangs")
        writing.wait(30)
        for number in range(10_500):
            log.info("%d", number)
        hangs.set()
        # The end has a deadline, by which a slow machine hasn't written them all.
        listener._target.__self__.queue.join()
        """,
        to_stderr=False,
    )
    assert status == 0
    messages = [line["message"] for line in lines]
    notice = next(
        message for message in messages if "log lines were dropped: they came faster" in message
    )
    assert int(notice.split()[0]) + sum(message.isdecimal() for message in messages) == 10_500
    assert int(notice.split()[0]) >= 500


def test_an_end_does_not_wait_for_a_disk_that_hangs(tmp_path: Path) -> None:
    status, _, _ = _run(
        tmp_path,
        """
        setup._FLUSH_S = 0.1
        listener = next(each for each in threading.enumerate() if "_monitor" in each.name)
        file = listener._target.__self__.handlers[0]
        # Under the handler's lock, as a write is.
        file.emit = lambda record: threading.Event().wait()
        log.info("never written")
        """,
        to_stderr=False,
    )
    assert status == 0
