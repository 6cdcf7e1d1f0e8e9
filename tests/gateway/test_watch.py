"""When a worker over its grant is asked to trim, and when it is replaced."""

from __future__ import annotations

from gateway.memory.watch import Advice, Watch

GRANT = 1_000_000_000
BOUND = 1_100_000_000


def test_within_its_grant_nothing_is_done() -> None:
    watch = Watch(GRANT)
    assert watch.bound_bytes == BOUND
    assert [watch.judge(now, GRANT) for now in range(100)] == [None] * 100


def test_a_little_over_it_is_trimmed_now_and_then() -> None:
    watch = Watch(GRANT)
    advice = [watch.judge(now, BOUND) for now in range(11)]
    assert [now for now, each in enumerate(advice) if each is Advice.TRIM] == [0, 5, 10]
    assert Advice.REPLACE not in advice


def test_far_over_it_is_replaced_if_the_trim_was_no_use() -> None:
    watch = Watch(GRANT)
    advice = [watch.judge(now, BOUND + 1) for now in range(6)]
    assert advice == [Advice.TRIM, None, None, None, None, Advice.REPLACE]


def test_a_trim_that_helped_is_forgotten() -> None:
    watch = Watch(GRANT)
    assert watch.judge(0, BOUND + 1) is Advice.TRIM
    assert watch.judge(3, GRANT - 1) is None
    assert watch.judge(100, BOUND + 1) is Advice.TRIM


def test_small_grants_have_a_margin_too() -> None:
    assert Watch(100_000_000).bound_bytes == 164_000_000
