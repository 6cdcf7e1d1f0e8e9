"""Blocks are read where that is faster than to compute them, by what was measured."""

from __future__ import annotations

import pytest

from protocol.prompt_store.index import Speeds
from worker.prompt_cache.speeds import MeasuredSpeeds

MB = 1_000_000


def _measured(read_mb_per_s: float, tokens_per_s: float) -> MeasuredSpeeds:
    speeds = MeasuredSpeeds()
    speeds.observe_read(int(read_mb_per_s * MB), 1.0)
    speeds.observe_prefill(int(tokens_per_s), 1.0)
    return speeds


@pytest.mark.parametrize(
    ("read_mb_per_s", "tokens_per_s", "worth"),
    [(1000, 1000, True), (50, 1000, False), (50, 400, True), (1000, 100_000, False)],
)
def test_the_cheaper_one_happens(read_mb_per_s: float, tokens_per_s: float, *, worth: bool) -> None:
    assert _measured(read_mb_per_s, tokens_per_s).worth_reading(100 * MB, 1000) is worth


def test_unknown_speeds_are_measured() -> None:
    speeds = MeasuredSpeeds()
    assert speeds.worth_reading(100 * MB, 1)
    speeds.observe_prefill(1000, 1.0)
    assert speeds.worth_reading(100 * MB, 1)
    assert not speeds.worth_reading(100 * MB, 0)
    assert speeds.read_s(MB) is None


def test_a_single_measurement_does_not_decide() -> None:
    speeds = _measured(1000, 1000)
    speeds.observe_read(10 * MB, 10.0)
    assert speeds.read_bytes_per_s == pytest.approx(1000 * MB + 0.3 * (MB - 1000 * MB))


def test_small_reads_and_chunks_do_not_count() -> None:
    speeds = _measured(1000, 1000)
    speeds.observe_read(MB - 1, 100.0)
    speeds.observe_prefill(63, 100.0)
    speeds.observe_prefill(1000, 0.0)
    assert speeds.read_bytes_per_s == 1000 * MB
    assert speeds.prefill_tokens_per_s == 1000


def test_speeds_of_an_earlier_worker_are_known() -> None:
    speeds = MeasuredSpeeds(Speeds(50.0 * MB, 1000.0))
    assert not speeds.worth_reading(100 * MB, 1000)
    assert speeds.changed_speeds() is None


def test_speeds_that_differ_from_reported_ones_are_news() -> None:
    speeds = MeasuredSpeeds()
    assert speeds.changed_speeds() is None
    speeds.observe_prefill(1000, 1.0)
    assert speeds.changed_speeds() == Speeds(None, 1000.0)
    speeds.observe_prefill(1500, 1.0)
    assert speeds.changed_speeds() is None
    speeds.observe_prefill(3000, 1.0)
    assert speeds.changed_speeds() == Speeds(None, pytest.approx(1705.0))


def test_a_disk_that_was_slow_is_tried_again() -> None:
    speeds = _measured(50, 1000)
    found = []
    for _ in range(32):
        # However often it is asked.
        assert speeds.worth_reading(100 * MB, 1000) is speeds.worth_reading(100 * MB, 1000)
        found.append(speeds.worth_reading(100 * MB, 1000))
        speeds.count(read=found[-1])
    assert [index for index, worth in enumerate(found) if worth] == [15, 31]
