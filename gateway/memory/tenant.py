"""A model as its memory sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.config.model import Model
from gateway.config.model_settings import RankPlace
from gateway.system.refusal import Refusal


class NoRoomError(OSError):
    """Another host lacks the memory that a rank needs now, and may have it later. The text has the
    numbers.
    """


class OtherHosts(Protocol):
    """The machines beside this one that ranks of models run on."""

    async def check_room(self, places: Sequence[RankPlace], each_bytes: int) -> None:
        """Whether the other hosts of these ranks have so much for each, by their own figures.

        Raises:
            NoRoomError: one of them has not.
            OSError: one can't be asked, or has other versions.
        """


class Tenant(Protocol):
    """Is told what was decided on it, and asked what decisions depend on."""

    model: Model

    @property
    def priority(self) -> int: ...

    @property
    def busy(self) -> bool:
        """Requests run or wait."""

    @property
    def last_used(self) -> float:
        """On the clock of `gateway.system.clock`."""

    @property
    def reload_s(self) -> float:
        """How long its last load took."""

    @property
    def waits_for_memory(self) -> bool: ...

    @property
    def asleep(self) -> bool:
        """Nothing keeps it from being loaded but that nobody has asked."""

    @property
    def brings_along(self) -> bool:
        """It is on its way up for its own sake, so those that it is loaded with come too."""

    def load_along(self) -> None:
        """One that it is loaded with waits for memory."""

    def note_wait(self, reason: str) -> None:
        """Why there is no room for it yet."""

    def admitted(self, floor_bytes: int) -> None: ...

    def take_limit(self, limit_bytes: int) -> None:
        """Its worker may hold so much from now on."""

    def tell_worker(self) -> None:
        """Its worker is told what was decided, if that differs from what it knows."""

    def replace(self, reason: str) -> None:
        """Its worker has to make place for another, which goes on."""

    def hangs(self, reason: str) -> None:
        """Its worker doesn't do what it was told."""

    def has_no_room(self, refusal: Refusal) -> None: ...

    def cannot_be_read(self, reason: str, *, watched: bool) -> None:
        """What it needs can't be told now; it may be later. `watched`: somebody will say when."""

    def evict(self, reason: str) -> None: ...

    def lost_memory(self, missing_bytes: int) -> None:
        """So much of what its last worker held did not come back."""
