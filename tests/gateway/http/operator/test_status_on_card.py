"""The status of a gateway whose workers compute on a card with memory of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.http.operator.status import _memory_status
from gateway.memory.ledger import Claim, Ledger
from gateway.system.memory import HostMemory
from gateway.system.memory_reading import CardMemory, Footprint

GB = 10**9
CARD = CardMemory(85 * GB, 40 * GB)


def _fleet(card: CardMemory | None, *workers: Footprint | None) -> Any:
    """What a status reads of it."""
    ledger = Ledger(83 * GB)
    ledger.spare_bytes = GB
    ledger.enter(Claim("m", 4 * GB, 0, 0.0))
    return SimpleNamespace(
        readings=SimpleNamespace(
            host=HostMemory(64 * GB, 50 * GB, None, "normal"),
            card=card,
            footprint=Footprint(GB, None),
        ),
        workers=[SimpleNamespace(memory=SimpleNamespace(footprint=worker)) for worker in workers],
        spares=[],
        scheduler=SimpleNamespace(ledger=ledger),
    )


@pytest.mark.parametrize(
    ("card", "workers", "footprint_bytes", "other_bytes"),
    [
        # 39 GB of the card are none of the machine's 64.
        (CARD, [Footprint(2 * GB, None, 39 * GB)], 39 * GB, 13 * GB),
        # MLX's CPU back end beside a card that others use.
        (None, [Footprint(2 * GB, None)], 2 * GB, 11 * GB),
        (CARD, [Footprint(2 * GB, None), Footprint(GB, None, 9 * GB)], 11 * GB, 11 * GB),
        (CARD, [None], None, None),
    ],
)
def test_memory_of_card_is_apart_from_memory_of_machine(
    card: CardMemory | None,
    workers: list[Footprint | None],
    footprint_bytes: int | None,
    other_bytes: int | None,
) -> None:
    status = _memory_status(_fleet(card, *workers))
    assert (status.footprint_bytes, status.other_bytes) == (footprint_bytes, other_bytes)
    assert (status.total_bytes, status.available_bytes) == (64 * GB, 50 * GB)
    assert status.granted_bytes == 5 * GB, "the spare's room is granted, too"
    assert status.card_total_bytes == (None if card is None else card.total_bytes)
    assert status.card_available_bytes == (None if card is None else card.available_bytes)
