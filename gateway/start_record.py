"""The gateway's last starts, in the state folder."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from gateway import starts
from gateway.state_file import read_state, write_state


class UncleanStarts(Struct, frozen=True):
    """Unix times of the starts since the last orderly end."""

    at: tuple[float, ...] = ()


class StartRecord:
    """Notes this start at once, since a crash gives no second chance to."""

    def __init__(self, path: Path, now: float) -> None:
        record = read_state(path, UncleanStarts) or UncleanStarts()
        self._path = path
        # Whether the gateway before this one crashed, was killed, or lost its machine.
        self.follows_crash = bool(record.at)
        self.caution = starts.caution(record.at, now)
        write_state(path, UncleanStarts((*starts.recent(record.at, now), now)))

    def ended_in_order(self) -> None:
        """The next start begins without a past."""
        write_state(self._path, UncleanStarts())
