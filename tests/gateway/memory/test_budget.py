"""Pressure counts when it lasts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.budget import Shortage
from gateway.system.memory_reading import Pressure


def test_a_moment_of_it_is_none() -> None:
    shortage = Shortage()
    levels: list[Pressure | None] = ["warn", "critical", None, "warn", "normal"]
    assert [shortage.lasting(each, 4.9 * at) for at, each in enumerate(levels)] == [None] * 5


def test_critical_counts_as_warn_until_it_has_lasted_itself() -> None:
    shortage = Shortage()
    found = [
        shortage.lasting(level, now)
        for level, now in (("warn", 0.0), ("critical", 4.0), ("critical", 5.0), ("critical", 9.0))
    ]
    assert found == [None, None, "warn", "critical"]
    assert shortage.lasting("warn", 9.5) == "warn"
    assert shortage.lasting("critical", 10.0) == "warn"
    assert shortage.lasting("normal", 10.5) is None
    assert shortage.lasting("critical", 11.0) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["normal", "warn", "critical", None]), st.floats(0, 8)),
        min_size=1,
    )
)
def test_what_counts_was_there_all_the_time(readings: list[tuple[Pressure | None, float]]) -> None:
    order: list[Pressure | None] = [None, "normal", "warn", "critical"]
    shortage, now = Shortage(), 0.0
    past: list[tuple[float, Pressure | None]] = []
    for level, passed_s in readings:
        now += passed_s
        past.append((now, level))
        counts = shortage.lasting(level, now)
        # All that was read since the last reading that is old enough.
        begun = max((index for index, (at, _) in enumerate(past) if now - at >= 5.0), default=None)
        least = 0 if begun is None else min(order.index(each) for _, each in past[begun:])
        assert counts == (order[least] if least >= order.index("warn") else None)
