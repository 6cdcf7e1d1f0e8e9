"""Tells systemd how the gateway is, by the protocol of sd_notify(3): datagrams, no library.

Without systemd every call does nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

logger = logging.getLogger(__name__)

_US_PER_S: Final = 1_000_000
# sd_watchdog_enabled(3) recommends half of the time after which the service is called hung.
_SHARE: Final = 0.5


class Notifier:
    """Sends states. A call never blocks: what the socket can't take at once is lost."""

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        """`address` is a path, or a name in the abstract namespace behind an `@`. After
        `watchdog_s` without a sign of life systemd ends the process: it wants one every `period_s`.
        """
        self._address = address.replace("@", "\0", 1) if address else None
        self._given = (address, watchdog_s)
        self.period_s = None if watchdog_s is None or address is None else watchdog_s * _SHARE
        # Kept open: a sign of life must not depend on whether a descriptor is left.
        self._socket: socket.socket | None = None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Notifier:
        """As systemd has set it; its variables are taken out, as workers have no use for them."""
        address = environment.pop("NOTIFY_SOCKET", None)
        meant_for = environment.pop("WATCHDOG_PID", None)
        watchdog_us = environment.pop("WATCHDOG_USEC", "")
        ours = meant_for in (None, str(os.getpid()))
        watched = ours and watchdog_us.isdigit() and int(watchdog_us) > 0
        return cls(address, int(watchdog_us) / _US_PER_S if watched else None)

    @property
    def environment(self) -> dict[str, str]:
        """As systemd has set it, for the next gateway."""
        address, watchdog_s = self._given
        if address is None:
            return {}
        given = {"NOTIFY_SOCKET": address}
        if watchdog_s is not None:
            given["WATCHDOG_USEC"] = str(round(watchdog_s * _US_PER_S))
        return given

    def silence(self) -> None:
        """Another gateway speaks for the service."""
        self._address = None

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """The configuration is read again; `ready` ends this."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    async def sign_of_life(self) -> None:
        """To be given by the event loop every `period_s`; None: nobody wants it."""
        self._send("WATCHDOG=1")

    def _send(self, *assignments: str) -> None:
        if self._address is None:
            return
        # A line ends an assignment.
        text = "\n".join(each.replace("\n", " ") for each in assignments)
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            self._socket.sendto(text.encode(), self._address)
        except OSError as error:
            logger.warning("systemd isn't told %r: %s", assignments[0], error)
