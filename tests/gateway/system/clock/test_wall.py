"""The clock on the wall is set a day on, or a day back: what means the wall goes by it."""

from __future__ import annotations

import pytest

from gateway.access.api_key import ApiKey
from gateway.system.tasks import Faults

DAY_S = 86_400.0
NOW = 1_800_000_000.0


def test_a_key_ends_by_the_wall() -> None:
    key = ApiKey(name="a", digest="", created_at=NOW, expires_at=NOW + DAY_S / 2)
    assert not key.expired(NOW)
    assert key.expired(NOW + DAY_S)
    assert not key.expired(NOW - DAY_S), "and is good again when the clock is put right"


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
def test_a_fault_is_said_again_whatever_the_clock_says(jump_s: float) -> None:
    faults = Faults()
    error = RuntimeError("it broke")
    assert faults.record("a check", error, NOW)
    assert not faults.record("a check", error, NOW + 1.0)
    assert faults.record("a check", error, NOW + jump_s)
    assert [fault.at for fault in faults.recent(NOW + jump_s)] == [NOW + jump_s]
    assert faults.recent(NOW + jump_s + DAY_S) == []
