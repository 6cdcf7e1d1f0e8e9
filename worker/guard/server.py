"""The server of a command: its start, its processes, its end, and its answers on a health path. The
system binds its processes to their guard.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

import psutil

from protocol.life import RunCommand
from protocol.process import grace_s
from protocol.process_tree import (
    MARK,
    CommandProcesses,
    below,
    held_bytes,
    listens,
    marked,
    send,
)
from worker.guard.output import CommandOutput

logger = logging.getLogger("guard")

# How often all processes are looked through for marked ones, which takes longer than the others.
_MARKED_S: Final = 10.0
_LOOK_S: Final = 0.02
_CONNECT_S: Final = 2.0


class PlaceError(Exception):
    """The command can't be started; the text says why."""


class CommandServer:
    """The processes of one command, which carry `mark`."""

    def __init__(self, order: RunCommand, mark: str, socket_path: str) -> None:
        """Start the command in the calling thread, which must live as long as this process.

        Raises:
            PlaceError: it can't be started.
        """
        self._mark = mark
        self._health = order.health or "/"
        self._has_health_path = order.health is not None
        placeholders = " ".join((*order.command, *order.environment.values()))
        self._socket = socket_path if "{socket}" in placeholders else None
        self._port = 0 if self._socket else _spare_port()
        self._key = secrets.token_urlsafe(32)
        read, write = os.pipe()
        try:
            self._first = subprocess.Popen(
                [self._filled(argument) for argument in order.command],
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                cwd=order.folder,
                env=os.environ
                | {name: self._filled(item) for name, item in order.environment.items()}
                | {MARK: mark},
                start_new_session=True,
                preexec_fn=bound_to(os.getpid()),
            )
        except (OSError, ValueError) as error:
            os.close(read)
            raise PlaceError(f"{order.command[0]} can't be started: {error}") from error
        finally:
            os.close(write)
        self._output = CommandOutput(read, self._health)
        self._looked_at = 0.0
        self._warned = False
        self._strays: list[psutil.Process] = []
        self._processes = CommandProcesses(os.getpid(), mark)

    def _filled(self, text: str) -> str:
        places = {"{port}": str(self._port), "{socket}": self._socket or "", "{key}": self._key}
        for name, value in places.items():
            text = text.replace(name, value)
        return text

    @property
    def address(self) -> str:
        """As in `Ready`."""
        return f"{self._key}@{self._socket or f'127.0.0.1:{self._port}'}"

    # Its processes

    def processes(self) -> list[psutil.Process]:
        """The processes that live. Those that have lost their parents may be missed for a while."""
        self.reap()
        now = time.monotonic()
        if now - self._looked_at >= _MARKED_S:
            self._looked_at = now
            self._strays = self._processes.all()
        by_pid = {stray.pid: stray for stray in (*self._strays, *self._processes.below())}
        return [process for process in by_pid.values() if process.is_running()]

    def alive(self, *, ready: bool) -> bool:
        """Whether the server lives. Its first process may leave others behind, which serve, or will
        once they are `ready`.
        """
        if (code := self._first.poll()) is None:
            return True
        if not self._everyone():
            return False
        if not ready:
            return code == 0
        connection = _HealthConnection(self._socket, self._port, _CONNECT_S)
        with contextlib.closing(connection):
            return self._reaches(connection)

    def _reaches(self, connection: _HealthConnection) -> bool:
        """Connect. Returns whether that leads to the server: another account's program may have
        bound the port first.
        """
        try:
            connection.connect()
        except OSError:
            return False
        if not self._port or any(listens(process, self._port) for process in below(os.getpid())):
            return True
        if any(listens(process, self._port) for process in marked(self._mark)):
            return True
        if not self._warned:
            self._warned = True
            logger.warning(
                "Another program listens at 127.0.0.1:%d, or the server doesn't listen at "
                "127.0.0.1 itself: nothing is sent there",
                self._port,
            )
        return False

    def _everyone(self) -> list[psutil.Process]:
        self.reap()
        return self._processes.all()

    def reap(self) -> None:
        """Take the exit statuses of adopted processes. Popen takes that of the first process."""
        self._first.poll()
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error, OSError):
                if child.pid != self._first.pid and child.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(child.pid, os.WNOHANG)

    @property
    def exit_code(self) -> int:
        """The exit code of an ended command; after a signal 128 and its number, as shells say."""
        code = self._first.returncode or 0
        return code if code >= 0 else 128 - code

    def end_report(self) -> str:
        """How the command has ended, and its last line of output."""
        code = self._first.returncode or 0
        how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        last_line = self._output.last_line()
        return f"The command ended {how}" + (f" and said last: {last_line}" if last_line else "")

    def end(self, hurry: Callable[[], bool]) -> None:
        """End all processes: by SIGTERM, and after a while, or in a hurry, by SIGKILL. Returns when
        there are none.
        """
        everyone = self._everyone()
        over_at = time.monotonic() + grace_s(held_bytes(everyone))
        send(everyone, signal.SIGTERM, signal.SIGCONT)
        while everyone and time.monotonic() < over_at and not hurry():
            time.sleep(_LOOK_S)
            everyone = self._everyone()
        while everyone:
            send(everyone, signal.SIGKILL)
            time.sleep(_LOOK_S)
            everyone = self._everyone()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._socket)  # noqa: PTH108

    # Its answers

    def answers(self, timeout_s: float) -> int | None:
        """Ask on the health path. Returns the status of the answer; None: it is none, or none comes
        in time.
        """
        connection = _HealthConnection(self._socket, self._port, timeout_s)
        headers = {"Connection": "close", "Authorization": f"Bearer {self._key}"}
        with contextlib.closing(connection):
            if not self._reaches(connection):
                return None
            try:
                connection.request("GET", self._health, headers=headers)
                return connection.getresponse().status
            except (OSError, http.client.HTTPException):
                return None

    def is_ready(self, status: int | None) -> bool:
        if status is None:
            return False
        return not self._has_health_path or 200 <= status < 300


class _HealthConnection(http.client.HTTPConnection):
    def __init__(self, socket_path: str | None, port: int, timeout_s: float) -> None:
        super().__init__("127.0.0.1", port or None, timeout=timeout_s)
        self._socket_path = socket_path

    def connect(self) -> None:
        if self._socket_path is None:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._socket_path)


def _spare_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


if sys.platform == "linux":
    _PDEATHSIG = 1
    _CHILD_SUBREAPER = 36
    _prctl = ctypes.CDLL(None, use_errno=True).prctl

    def adopt_orphans() -> None:
        """Become the parent of descendants that lose theirs (prctl(2), PR_SET_CHILD_SUBREAPER)."""
        _prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)

    def bound_to(guard_pid: int) -> Callable[[], None] | None:
        """What a child calls before its program starts: it is killed when the guard is
        (PR_SET_PDEATHSIG). The thread that starts the child must live as long as the guard.
        """

        def bind() -> None:
            _prctl(_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != guard_pid:
                os._exit(1)

        return bind

else:

    def adopt_orphans() -> None:
        """Do nothing: orphans become children of launchd, and are found by mark and session."""

    def bound_to(guard_pid: int) -> Callable[[], None] | None:
        """None: macOS binds no child to its parent. The gateway kills what a guard has left."""
        return None
