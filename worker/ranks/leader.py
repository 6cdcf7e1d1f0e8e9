"""Rank 0's way to its followers, from their start to their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from protocol.life import Load
from worker.ranks.group import join, versions
from worker.ranks.lead import Lead
from worker.ranks.links import LeaderLink
from worker.ranks.orders import Begin
from worker.ranks.parts import split_model
from worker.system.errors import ModelError


class Leader:
    """`lead` is there once all have met."""

    lead: Lead

    def __init__(self, command: Load, on_lost: Callable[[int], None]) -> None:
        """`on_lost` is called from a thread, with the rank that is lost.

        Raises:
            ModelError: the followers can't be heard, or the model asks for what ranks can't do.
        """
        if command.ranks is None:
            raise ModelError("A model of one process has no ranks.")
        for what, asked in (
            ("adapter", command.adapter_path),
            ("draft_model", command.draft_path),
            ("pictures", command.pictures),
        ):
            if asked:
                raise ModelError(f"{what}: a model of several ranks can't have that.")
        self._command = command
        self._ranks = command.ranks
        self._on_lost = on_lost
        self._closing = False
        self._group: Any = None
        self._link = LeaderLink(self._ranks, self._lost)

    def gather(self, should_stop: Callable[[], bool]) -> None:
        """Wait for the followers, and meet them.

        Raises:
            ModelError, LoadAbandonedError.
        """
        self._link.gather(versions(), should_stop)
        # The secret is nobody else's business.
        ranks = msgspec.structs.replace(self._ranks, keys=(b"", b""))
        self._link.tell(Begin(msgspec.structs.replace(self._command, ranks=ranks)))
        self._group = join(self._ranks, 0)
        self.lead = Lead(self._link, self._group)

    def part(self, model: Any, config: dict[str, Any]) -> None:
        """Leave of a model what rank 0 computes. Raises: ModelError."""
        split_model(model, config, self._group, self._ranks.split)

    def until_loaded(self, should_stop: Callable[[], bool]) -> None:
        """Wait until all have their weights. Raises: ModelError, LoadAbandonedError."""
        self._link.until_loaded(should_stop)

    def close(self) -> None:
        """It is over for the followers, too."""
        self._closing = True
        self._link.finish()
        self._link.close()

    def _lost(self, rank: int) -> None:
        if not self._closing:
            self._on_lost(rank)
