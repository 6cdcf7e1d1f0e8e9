"""When ranks on another host may be called ended, rule by rule. All of it at once:
test_rank_worlds.py.
"""

from __future__ import annotations

import pytest

from gateway.workers import shutdown_steps
from gateway.workers.lease import Tenants
from protocol.process import grace_s

GB = 1_000_000_000


def awaited_s(held: int) -> float:
    """For the host's ladder, the rank's own end, and a second."""
    return shutdown_steps.orphaned(held)[0].deadline_s + grace_s(held) + 1.0


def gone_after_s(tenants: Tenants, begin: float) -> float:
    """When something is due, to a tenth."""
    tenths = range(1, 2000)
    return next(each / 10 for each in tenths if tenants.due(begin + each / 10))


@pytest.mark.parametrize(
    ("promised", "measured", "counts"),
    [(4 * GB, 0, 4 * GB), (4 * GB, 9 * GB, 9 * GB), (9 * GB, 4 * GB, 9 * GB), (0, GB, 1 << 50)],
)
def test_what_is_lost_is_waited_for(promised: int, measured: int, counts: int) -> None:
    tenants = Tenants()
    tenants.expect("a", promised)
    tenants.measured("a", measured)
    tenants.measured("gone", 50 * GB)
    tenants.lose(100.0, "out of reach")
    assert gone_after_s(tenants, 100.0) == pytest.approx(awaited_s(counts), abs=0.11)
    assert tenants.due(1e6) == []


def test_the_first_loss_counts() -> None:
    tenants = Tenants()
    tenants.expect("a", GB)
    tenants.lose(100.0, "out of reach")
    tenants.lose(105.0, "there is no such lease")
    (due,) = tenants.due(100.0 + awaited_s(GB))
    assert due == ("a", "out of reach")


def test_an_end_that_is_told_is_not_waited_for() -> None:
    tenants = Tenants()
    for each in ("a", "b"):
        tenants.expect(each, GB)
    tenants.disown("a")
    tenants.lose(100.0, "out of reach")
    tenants.ended("a")
    tenants.ended("a")
    assert [each for each, _ in tenants.due(1e6)] == ["b"]


def test_nothing_is_due_without_a_loss() -> None:
    tenants = Tenants()
    tenants.expect("a", GB)
    tenants.disown("a")
    tenants.told(("a",), 100.0)
    # The host says when it has ended it.
    assert tenants.due(1e6) == []


def test_what_is_unwanted_is_told_until_it_was_heard() -> None:
    tenants = Tenants()
    for each in ("a", "b"):
        tenants.expect(each, GB)
        tenants.disown(each)
    tenants.disown("never there")
    tenants.unanswered("never there", "no answer")
    assert tenants.unwanted == ("a", "b")
    tenants.told(("a",), 100.0)
    assert tenants.unwanted == ("b",)
    tenants.ended("b")
    assert tenants.unwanted == ()
    tenants.disown("a")
    tenants.lose(100.0, "out of reach")
    assert tenants.unwanted == ()


def test_a_start_without_an_answer_counts_until_the_host_has_heard() -> None:
    tenants = Tenants()
    tenants.expect("a", GB)
    tenants.unanswered("a", "no answer")
    assert (tenants.unwanted, tenants.doubt("a")) == (("a",), "no answer")
    assert tenants.due(1e6) == []
    tenants.told(("a",), 100.0)
    assert tenants.due(100.0) == []
    assert tenants.due(100.0 + awaited_s(GB)) == [("a", "no answer")]
    assert tenants.doubt("a") is None
