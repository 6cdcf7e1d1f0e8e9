"""A model as its memory sees it."""

from __future__ import annotations

from typing import Protocol

from gateway.dispatch.refusal import Refusal
from gateway.model.model import Model


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
        """On the event loop's clock."""

    @property
    def reload_s(self) -> float:
        """How long its last load took."""

    @property
    def waits_for_memory(self) -> bool: ...

    def note_wait(self, reason: str) -> None:
        """Why there is no room for it yet."""

    def admitted(self, floor_bytes: int) -> None: ...

    def take_limit(self, limit_bytes: int) -> None:
        """Its worker may hold so much from now on."""

    def take_bound(self) -> None:
        """The most that its worker can get has changed."""

    def replace(self, reason: str) -> None:
        """Its worker has to make place for another, which goes on."""

    def hangs(self, reason: str) -> None:
        """Its worker doesn't do what it was told."""

    def has_no_room(self, refusal: Refusal) -> None: ...

    def cannot_be_read(self, reason: str) -> None:
        """What it needs can't be told now; it may be later."""

    def evict(self, reason: str) -> None: ...

    def lost_memory(self, missing_bytes: int) -> None:
        """So much of what its last worker held did not come back."""
