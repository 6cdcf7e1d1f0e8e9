"""Bytes of one rank and of all."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.workers.rank_memory import SCALED, for_all_ranks, for_each_rank
from protocol.answers import Output
from protocol.life import (
    Bound,
    Heartbeat,
    Limit,
    MlxMemory,
    Need,
)
from protocol.message_base import Message

SIZES = st.integers(0, 1 << 40)


@given(limit=SIZES, beside=SIZES, bound=SIZES, ranks=st.integers(1, 8))
def test_all_ranks_together_keep_to_what_was_granted(
    limit: int, beside: int, bound: int, ranks: int
) -> None:
    limit_message = Limit(limit_bytes=limit, beside_bytes=beside, bound=Bound(bound, 7, "why"))
    each = for_each_rank(limit_message, ranks)
    assert each.limit_bytes * ranks <= limit < (each.limit_bytes + 1) * ranks
    assert each.bound is not None
    assert each.bound.bytes * ranks <= bound
    assert (each.bound.tokens, each.bound.reason) == (7, "why")


def test_message_of_rank_0_counts_for_all_ranks() -> None:
    heartbeat = Heartbeat(
        step=3,
        step_age_s=0.5,
        active=1,
        waiting=2,
        memory=MlxMemory(active_bytes=10, cache_bytes=20, peak_bytes=30),
        prompt_cache_bytes=5,
    )
    memory = MlxMemory(active_bytes=30, cache_bytes=60, peak_bytes=90)
    expected = msgspec.structs.replace(heartbeat, memory=memory, prompt_cache_bytes=15)
    assert for_all_ranks(heartbeat, 3) == expected
    need = Need(
        limit_bytes=1, used_bytes=2, wanted_bytes=3, least_bytes=4, held=5, context_tokens=6
    )
    assert for_all_ranks(need, 2) == Need(
        limit_bytes=2, used_bytes=4, wanted_bytes=6, least_bytes=8, held=5, context_tokens=6
    )


def test_message_without_bytes_stays_the_same() -> None:
    output = Output(step=1, deltas=())
    assert for_all_ranks(output, 4) is output


def _messages(kind: type[Message]) -> list[type[Message]]:
    return [message for sub in kind.__subclasses__() for message in (sub, *_messages(sub))]


def test_every_field_with_bytes_is_scaled() -> None:
    found = {
        (kind, field.name)
        for kind in _messages(Message)
        if kind.__module__.startswith("protocol.")
        for field in msgspec.structs.fields(kind)
        if field.name.endswith("_bytes") or field.type in (MlxMemory, Bound, Bound | None)
    }
    scaled = {(kind, name) for kind, names in SCALED.items() for name in names}
    assert found == scaled
