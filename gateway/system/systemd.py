"""Tells systemd the state of the gateway, by the protocol of sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

logger = logging.getLogger(__name__)

_US_PER_S: Final = 1_000_000
# A sign of life is due after half of the watchdog's time, as sd_watchdog_enabled(3) recommends.
_SHARE: Final = 0.5


class Notifier:
    """Tells systemd the state of the gateway, by the protocol of sd_notify(3). Without systemd
    every call does nothing. No call blocks: a message that can't be sent at once is lost.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        """`address` is the path of systemd's socket, or `@` and a name in the abstract namespace.
        After `watchdog_s` without a sign of life systemd ends the process. A sign of life is due
        every `period_s`; None: systemd expects none.
        """
        self._address = address.replace("@", "\0", 1) if address else None
        self._given = (address, watchdog_s)
        self.period_s = None if watchdog_s is None or address is None else watchdog_s * _SHARE
        # The socket stays open: a sign of life must not fail for want of a descriptor.
        self._socket: socket.socket | None = None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Notifier:
        """A notifier by systemd's variables, which are removed: workers must not get them."""
        address = environment.pop("NOTIFY_SOCKET", None)
        meant_for = environment.pop("WATCHDOG_PID", None)
        watchdog_us = environment.pop("WATCHDOG_USEC", "")
        ours = meant_for in (None, str(os.getpid()))
        watched = ours and watchdog_us.isdigit() and int(watchdog_us) > 0
        return cls(address, int(watchdog_us) / _US_PER_S if watched else None)

    @property
    def environment(self) -> dict[str, str]:
        """The variables from which the next gateway makes its notifier."""
        address, watchdog_s = self._given
        if address is None:
            return {}
        given = {"NOTIFY_SOCKET": address}
        if watchdog_s is not None:
            given["WATCHDOG_USEC"] = str(round(watchdog_s * _US_PER_S))
        return given

    def silence(self) -> None:
        """Send nothing more: another gateway speaks for the service."""
        self._address = None

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Say that the configuration is being read again; `ready` says that this is done."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    async def sign_of_life(self) -> None:
        """The event loop must call this every `period_s`, unless `period_s` is None."""
        self._send("WATCHDOG=1")

    def _send(self, *assignments: str) -> None:
        if self._address is None:
            return
        # A newline ends an assignment, so values must have none.
        text = "\n".join(assignment.replace("\n", " ") for assignment in assignments)
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            self._socket.sendto(text.encode(), self._address)
        except OSError as error:
            logger.warning("systemd isn't told %r: %s", assignments[0], error)
