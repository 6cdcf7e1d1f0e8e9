"""The real command line as a process, in pipes or on a terminal."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.gateway import START_S

BULKHEAD = (sys.executable, "-m", "gateway")


def bulkhead(
    *arguments: str, url: str | None = None, stdin: str = "", within_s: float = START_S
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in pipes."""
    return subprocess.run(
        [*BULKHEAD, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=within_s,
        env=environment(url),
    )


@contextmanager
def started(*arguments: str, url: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """Start a command in pipes; it is gone when the context ends."""
    with subprocess.Popen(
        [*BULKHEAD, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(url),
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def read_until(running: subprocess.Popen[str], text: str) -> str:
    """What a started command prints, up to the line that has the text."""
    assert running.stdout is not None
    printed = ""
    for line in running.stdout:
        printed += line
        if text in line:
            return printed
    raise AssertionError(f"it ended before it printed {text!r}: {printed}")


def environment(url: str | None) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("BULKHEAD_", "COLUMNS"))}
    return inherited if url is None else {**inherited, "BULKHEAD_URL": url}


class Terminal:
    """A command that believes that a person sits before it."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.screen = ""
        # All that ever came.
        self.printed = ""
        self._descriptor = descriptor
        # A character may come in two halves.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def type(self, keys: str) -> None:
        # Lone surrogates stand for bytes that are no text.
        os.write(self._descriptor, keys.encode("utf-8", "surrogateescape"))

    def expect(self, text: str, within_s: float = START_S) -> str:
        """Read until the text has come; returns what came before it, and forgets both."""
        deadline = time.monotonic() + within_s
        while text not in self.screen:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not self._read(left_s):
                raise AssertionError(f"{text!r} did not come; there is: {self.screen!r}")
        before, _, self.screen = self.screen.partition(text)
        return before

    def more(self, within_s: float) -> str | None:
        """What comes next; None if nothing does, or nothing can."""
        if not self.screen and (within_s <= 0 or not self._read(within_s)):
            return None
        came, self.screen = self.screen, ""
        return came

    def exit_status(self, within_s: float = START_S) -> int:
        deadline = time.monotonic() + within_s
        while (left_s := deadline - time.monotonic()) > 0 and self._read(left_s):
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self, within_s: float) -> bool:
        """Whether the command may still print."""
        if not select.select([self._descriptor], [], [], within_s)[0]:
            return False
        try:
            read = os.read(self._descriptor, 65536)
        except OSError:
            # EIO: how Linux says that the other side is closed.
            return False
        text = self._decoder.decode(read)
        self.screen += text
        self.printed += text
        return bool(read)


@contextmanager
def terminal(
    *arguments: str,
    url: str | None,
    kind: str = "xterm",
    size: tuple[int, int] = (24, 80),
    more: dict[str, str] | None = None,
    command: tuple[str, ...] = BULKHEAD,
) -> Iterator[Terminal]:
    """Start a command on a terminal of its own, of so many lines and columns; `kind` is what TERM
    says, and `more` goes into the environment, too.
    """
    pid, descriptor = pty.fork()
    if pid == 0:
        # Of its own terminal: nothing is printed before it has its size.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        known = {**environment(url), "TERM": kind, **(more or {})}
        os.execvpe(command[0], [*command, *arguments], known)
    try:
        yield Terminal(pid, descriptor)
    finally:
        os.close(descriptor)
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
