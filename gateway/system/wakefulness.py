"""Keeps a Mac from sleep while the gateway works."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from typing import Final

from gateway.system.child import Child

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
        self._assertion: Child | None = None
        self._wanted_until = self._not_before = float("-inf")

    def tick(self, now: float, *, works: bool) -> None:
        if works:
            self._wanted_until = now + _LINGER_S
        wanted = now < self._wanted_until
        if self._assertion is not None and self._assertion.status is not None:
            logger.warning("The machine may sleep: caffeinate has ended by itself.")
            self._assertion, self._not_before = None, now + _AGAIN_S
        if not wanted:
            self.end()
        elif self._assertion is None and self._command is not None and now >= self._not_before:
            self._not_before = now + _AGAIN_S
            self._assertion = Child(
                [*self._command, str(os.getpid())],
                "awake",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def end(self) -> None:
        if self._assertion is not None:
            self._assertion.signal(signal.SIGTERM)
            self._assertion, self._not_before = None, float("-inf")
