from __future__ import annotations

import asyncio
import time

from gateway.http.wire.access_log import Ended, HttpMeter
from gateway.requests.use import ModelMeter, Timing
from gateway.system.tasks import Histogram, LoopLag, Tasks


def _compute(seconds: float) -> None:
    time.sleep(seconds)


def _count(histogram: Histogram) -> int:
    return histogram.buckets()[-1][1]


def test_waits_are_counted_from_the_arrival_and_once() -> None:
    meter, timing = ModelMeter(), Timing(100.0)
    meter.sent(timing, 102.0)
    meter.tokens(timing, 1, 105.0)
    # Parked, and sent to another worker.
    meter.sent(timing, 120.0)
    meter.tokens(timing, 4, 125.0)
    assert (timing.queue_s, timing.first_token_s) == (2.0, 5.0)
    assert (meter.queue_s.sum, _count(meter.queue_s)) == (2.0, 1)
    assert (meter.first_token_s.sum, _count(meter.first_token_s)) == (5.0, 1)
    assert (meter.between_tokens_s.sum, _count(meter.between_tokens_s)) == (20.0, 4)
    assert (5.0, 4) in meter.between_tokens_s.buckets()
    assert meter.generated_tokens == 5


def test_failed_requests_are_not_measured() -> None:
    meter = HttpMeter()
    meter.end(Ended("/v1/completions", "m", "ok"), 2.0)
    meter.end(Ended("/v1/completions", "m", "queue_full"), 0.001)
    meter.end(Ended("/livez", "", "ok"), 0.001)
    assert {model: histogram.sum for model, histogram in meter.whole_s.items()} == {"m": 2.0}
    assert sum(meter.ended.values()) == 3


async def test_a_busy_loop_is_late() -> None:
    lag, tasks = LoopLag(), Tasks("test")
    lag.watch(tasks)
    async with asyncio.timeout(60):
        while lag.late_s.sum < 0.5:
            await asyncio.sleep(0.01)
            _compute(0.4)
    await tasks.cancel_all()
    assert lag.late_s.sum < 60, "and by no more than it was"
