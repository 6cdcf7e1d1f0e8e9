"""The budget of bytes that all requests share, and the share of one request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from starlette.types import Scope

from gateway.system.refusal import Refusal


class ByteBudget:
    """A budget of bytes. Reserved bytes must be given back. Callers in several threads must
    hold `lock` during each call.
    """

    def __init__(self, total_bytes: int) -> None:
        self.lock = threading.Lock()
        self.total_bytes = self.left_bytes = total_bytes

    def reserve(self, wanted_bytes: int) -> bool:
        """Reserve bytes, if enough are left. Returns whether they were reserved."""
        if wanted_bytes > self.left_bytes:
            return False
        self.left_bytes -= wanted_bytes
        return True

    def give_back(self, reserved_bytes: int) -> None:
        self.left_bytes += reserved_bytes


# The key of a request's share in the "state" of its ASGI scope.
SHARE: Final = "share"
# One request alone must not keep out all others.
MOST_BYTES: Final = 128 << 20
_RETRY_AFTER_S: Final = 5


class Share:
    """Counts the bytes of a request before they are used: its body, and everything that the body
    expands to.

    The request holds the share, and so does work that goes on after the request. When the last
    holder releases the share, all its bytes are given back. Any thread may reserve bytes.
    """

    def __init__(self, budget: ByteBudget, free_bytes: int = 0) -> None:
        """The first `free_bytes` of the request are not counted."""
        self.size_bytes = 0
        self._budget = budget
        self._free_bytes = free_bytes
        self._held_bytes = 0
        self._holders = 1
        self._at_end: list[Callable[[], None]] = []

    def reserve(self, more_bytes: int) -> None:
        """Count more bytes. Raises: Refusal: there is no room for them, now or ever."""
        with self._budget.lock:
            if not self._holders:
                return  # The request has ended.
            size_bytes = self.size_bytes + more_bytes
            if size_bytes > MOST_BYTES:
                raise Refusal(
                    "request_too_large",
                    f"What this request comes to, with all that it names and repeats, is more than "
                    f"{MOST_BYTES >> 20} MiB: send fewer or smaller parts.",
                )
            wanted_bytes = max(0, size_bytes - self._free_bytes) - self._held_bytes
            if not self._budget.reserve(wanted_bytes):
                raise Refusal(
                    "overloaded",
                    "The bodies of all requests together, with what they name and repeat, would "
                    f"take more than {self._budget.total_bytes >> 20} MiB: try again later.",
                    retry_after_s=_RETRY_AFTER_S,
                )
            self.size_bytes = size_bytes
            self._held_bytes += wanted_bytes

    def release_part(self, gone_bytes: int) -> None:
        """Give bytes back that were counted, and have gone."""
        with self._budget.lock:
            self.size_bytes = max(0, self.size_bytes - gone_bytes)
            surplus_bytes = self._held_bytes - max(0, self.size_bytes - self._free_bytes)
            if self._holders and surplus_bytes > 0:
                self._held_bytes -= surplus_bytes
                self._budget.give_back(surplus_bytes)

    def hold(self) -> None:
        """Add a holder, which must call `release`."""
        with self._budget.lock:
            self._holders += 1

    def when_released(self, call: Callable[[], None]) -> None:
        """Have the last holder make the call, to let go of what the request has beside memory."""
        self._at_end.append(call)

    def release(self) -> None:
        with self._budget.lock:
            self._holders -= 1
            if self._holders:
                return
            self._budget.give_back(self._held_bytes)
        for call in self._at_end:
            call()


def share_of(scope: Scope) -> Share:
    share: Share = scope["state"][SHARE]
    return share
