"""The record of a gateway's starts, which shows when it crashes again and again, and the file that
says by which interpreter the next one is started.

Times are Unix times in seconds, as they must hold beyond a boot: a model that panics the machine
(mlx#3186) does so again after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from gateway.system.state_file import read_state, write_state

# A load of hundreds of gigabytes takes minutes, so a loop may be that slow.
WINDOW_S: Final = 1800.0
LIMIT: Final = 3


def recent(unclean: Sequence[float], now: float) -> list[float]:
    """Of the starts since the last orderly end, those that still count."""
    return [each for each in unclean if abs(now - each) < WINDOW_S]


def caution(unclean: Sequence[float], now: float) -> str | None:
    """Why nothing should be loaded without being asked for; None if all is well.

    `unclean` are the starts since the last orderly end, without the present one.
    """
    count = len(recent(unclean, now))
    if count < LIMIT:
        return None
    return (
        f"the last {count} starts within {WINDOW_S / 60:.0f} min did not end in order, so no model "
        "was preloaded; requests and `bulkhead load` load as always"
    )


class UncleanStarts(Struct, frozen=True):
    """Unix times of the starts since the last orderly end."""

    at: tuple[float, ...] = ()


class StartRecord:
    """Notes this start at once, since a crash gives no second chance to."""

    def __init__(self, path: Path, now: float, *, takes_over: bool = False) -> None:
        """A gateway that `takes_over` from another one goes on with that one's start."""
        self._path = path
        if takes_over:
            self.follows_crash, self.caution = False, None
            return
        record = read_state(path, UncleanStarts) or UncleanStarts()
        # Whether the gateway before this one crashed, was killed, or lost its machine.
        self.follows_crash = bool(record.at)
        self.caution = caution(record.at, now)
        write_state(path, UncleanStarts((*recent(record.at, now), now)))

    def ended_in_order(self) -> None:
        """The next start begins without a past."""
        write_state(self._path, UncleanStarts())


class NextGateway(Struct, frozen=True):
    """`python` is the interpreter of the next gateway. No request can name it: only who may write
    to the state folder may have programs run as the gateway's account.
    """

    python: str | None = None
