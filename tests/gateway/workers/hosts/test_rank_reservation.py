"""What other hosts keep for ranks, and when they are asked for more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.workers.rank_memory import PATIENCE_S, RankReservation

GB = 1_000_000_000
SIZES = st.integers(1, 1 << 40)


def reserved(*bytes_: int) -> RankReservation:
    reservation = RankReservation()
    for rank, number in enumerate(bytes_, start=1):
        reservation.record(rank, f"studio{rank}", number)
    return reservation


@given(bytes_=st.lists(SIZES, min_size=1, max_size=4), least=SIZES)
def test_wish_is_enough_for_the_sequence(bytes_: list[int], least: int) -> None:
    reservation = reserved(*bytes_)
    reservation.record_need(least, 0.0, waits=True)
    assert reservation.most_bytes == min(bytes_)
    assert reservation.wish_bytes is not None or least <= min(bytes_)
    if (wish := reservation.wish_bytes) is not None:
        assert wish > least
        for rank in range(1, len(bytes_) + 1):
            reservation.record(rank, "there", max(wish, bytes_[rank - 1]))
        reservation.record_wish(wish)
        assert reservation.wish_bytes is None
    assert reservation.bound_bytes is None
    assert reservation.remark(1) is None
    assert reservation.reason_to_end(PATIENCE_S) is None


def test_model_without_other_hosts_has_no_bound() -> None:
    reservation = reserved()
    reservation.record_need(GB, 0.0, waits=True)
    assert (reservation.most_bytes, reservation.bound_bytes, reservation.wish_bytes) == (
        None,
        None,
        None,
    )
    assert reservation.remark(1) is None
    assert reservation.reason_to_end(PATIENCE_S) is None


def test_host_that_reserves_too_little_is_named() -> None:
    reservation = reserved(4 * GB, 2 * GB)
    reservation.record_need(3 * GB, 0.0, waits=False)
    assert reservation.remark(0) is None
    assert reservation.remark(2) == (
        "2 requests wait for memory elsewhere: studio2 keeps 2.0 GB for a rank, and 3.0 GB are "
        "needed"
    )


def test_a_bound_is_known_once_all_have_answered() -> None:
    reservation = reserved(2 * GB)
    reservation.record_need(3 * GB, 0.0, waits=True)
    wish = reservation.wish_bytes
    assert wish is not None
    assert reservation.bound_bytes is None
    reservation.record_wish(wish)
    assert reservation.bound_bytes == 2 * GB
    reservation.forget_wish()
    assert reservation.bound_bytes is None


def test_long_wait_for_memory_is_given_up() -> None:
    reservation = reserved(2 * GB)
    reservation.record_need(3 * GB, 10.0, waits=True)
    reservation.record_need(3 * GB, 20.0, waits=True)
    assert reservation.reason_to_end(9.0 + PATIENCE_S) is None
    reason = reservation.reason_to_end(10.0 + PATIENCE_S)
    assert reason is not None
    assert "studio1 keeps 2.0 GB" in reason
    reservation.record_need(3 * GB, 70.0, waits=False)
    assert reservation.reason_to_end(200.0) is None
