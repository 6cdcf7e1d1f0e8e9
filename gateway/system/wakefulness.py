"""Keeps a Mac from sleep while the gateway works."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Final

from gateway.system.lane import start_thread

logger = logging.getLogger(__name__)

# The command that keeps the machine awake, by system. The gateway's pid is appended: with `-w`
# caffeinate ends when that process ends (caffeinate(8)). Other systems have no command.
_COMMANDS: Final = {"darwin": ("/usr/bin/caffeinate", "-i", "-w")}
# A client's next request often comes within this time. The command then still runs.
_LINGER_S: Final = 10.0
# The least time between two starts of the command if it ends by itself.
_AGAIN_S: Final = 60.0


class Wakefulness:
    """Keeps the machine from sleep while there is work. Call `tick` a few times a second, with the
    time in seconds.
    """

    def __init__(self) -> None:
        self._command = _COMMANDS.get(sys.platform)
        self._assertion: subprocess.Popen[bytes] | None = None
        self._wanted_until = self._not_before = float("-inf")

    def tick(self, now: float, *, works: bool) -> None:
        if works:
            self._wanted_until = now + _LINGER_S
        wanted = now < self._wanted_until
        if self._assertion is not None and self._assertion.poll() is not None:
            logger.warning("The machine may sleep: caffeinate has ended by itself.")
            self._assertion, self._not_before = None, now + _AGAIN_S
        if not wanted:
            self.end()
        elif self._assertion is None and self._command is not None and now >= self._not_before:
            self._not_before = now + _AGAIN_S
            self._assertion = _begin(self._command)

    def end(self) -> None:
        if self._assertion is not None:
            self._assertion.terminate()
            self._assertion, self._not_before = None, float("-inf")


def _begin(command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Raises: OSError."""
    assertion = subprocess.Popen(
        [*command, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Python can then use posix_spawn on macOS, as it does for workers.
        close_fds=False,
    )
    try:
        start_thread(assertion.wait, "awake")
    except OSError:
        assertion.kill()
        assertion.wait()
        raise
    return assertion
