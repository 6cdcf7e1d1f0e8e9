"""A gateway that a command starts for as long as the command runs."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

import gateway
from gateway.cli.failure import CommandError
from gateway.system.child import Child
from gateway.system.log_lines import readable

_START_S: Final = 60.0
_STOP_S: Final = 20.0
_LOG_LINES: Final = 20
# The working folder in which `python -m gateway` finds this package.
_IMPORT_ROOT: Final = Path(gateway.__file__).resolve().parent.parent


class ChildGateway:
    """A process that runs `bulkhead serve`."""

    def __init__(self, child: Child, log_path: Path) -> None:
        self._child = child
        self._log_path = log_path

    @property
    def pid(self) -> int:
        return self._child.pid

    def address(self) -> str:
        """Wait for the line with the gateway's address, and return the address.

        Raises:
            CommandError: no such line came in time.
        """
        with contextlib.suppress(TimeoutError):
            line = self._child.next_line(_START_S).decode()
            if (address := re.search(r"https?://\S+", line)) is not None:
                return address[0]
        raise CommandError("The gateway did not start.")

    def log_tail(self) -> str:
        lines = self._log_path.read_text("utf-8", "replace").splitlines()
        return "\n".join(map(readable, lines[-_LOG_LINES:]))

    def stop(self) -> int:
        """End the gateway in order, or kill it if that takes too long. Return its exit status."""
        return self._child.stop(_STOP_S)

    def kill(self) -> int:
        return self._child.kill()


@contextlib.contextmanager
def serving(log_path: Path, *arguments: str) -> Iterator[ChildGateway]:
    """Run `bulkhead serve` with these arguments, and end it with the context. Its stderr goes to
    the file `log_path`.
    """
    with log_path.open("wb") as log:
        child = Child(
            [sys.executable, "-m", "gateway", "serve", *arguments],
            "gateway",
            folder=_IMPORT_ROOT,
            stdin=subprocess.DEVNULL,
            stderr=log,
            # Ctrl-C must reach only the command, which then ends the gateway in order.
            own_session=True,
            # The workers may hold the pipe open.
            drain_s=0.0,
        )
    with child:
        try:
            yield ChildGateway(child, log_path)
        finally:
            child.stop(_STOP_S)


def end_in_order() -> None:
    """Let SIGTERM and SIGHUP end this process by an exception, so that every context ends."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
