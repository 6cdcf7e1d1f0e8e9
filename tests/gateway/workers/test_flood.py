"""What counts as a flood."""

from __future__ import annotations

from gateway.workers.link import BYTES_PER_S, MESSAGES_PER_S, FloodGauge


def test_a_busy_engine_is_none() -> None:
    gauge = FloodGauge()
    times = (index / 1000 for index in range(60_000))
    assert all(gauge.count(now, 10_000) is None for now in times)


def test_too_many_messages() -> None:
    gauge = FloodGauge()
    assert all(gauge.count(7.0, 1) is None for _ in range(MESSAGES_PER_S))
    assert "messages within a second" in (gauge.count(7.5, 1) or "")
    assert gauge.count(8.0, 1) is None


def test_too_many_bytes() -> None:
    gauge = FloodGauge()
    assert gauge.count(7.0, BYTES_PER_S) is None
    assert "64 MB" in (gauge.count(7.5, 1) or "")
