"""The machine stays awake while requests run: a Mac that nobody uses sleeps in the middle of an
answer unless a process holds a power assertion.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Final

from gateway.system.threads import start_thread

logger = logging.getLogger(__name__)

# By system, before this process's id. `-w`: it ends with the gateway, however that ends
# (caffeinate(8)). Elsewhere nothing is held.
_COMMANDS: Final = {"darwin": ("/usr/bin/caffeinate", "-i", "-w")}
# From one request of an agent to the next it isn't worth another process.
_LINGER_S: Final = 10.0
# Until it is begun again where it has ended by itself.
_AGAIN_S: Final = 60.0


class Wakefulness:
    """To be told a few times a second whether there is work. `now` is in seconds."""

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
        # As workers are started: by posix_spawn on macOS.
        close_fds=False,
    )
    try:
        start_thread(assertion.wait, "awake")
    except OSError:
        assertion.kill()
        assertion.wait()
        raise
    return assertion
