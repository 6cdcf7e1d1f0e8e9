"""What other hosts keep for ranks, and when they are asked for more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.workers.rank_memory import PATIENCE_S, Promise

GB = 1_000_000_000
SIZES = st.integers(1, 1 << 40)


def kept(*bytes_: int) -> Promise:
    promise = Promise()
    for rank, each in enumerate(bytes_, start=1):
        promise.keeps(rank, f"studio{rank}", each)
    return promise


@given(bytes_=st.lists(SIZES, min_size=1, max_size=4), least=SIZES)
def test_what_is_asked_for_will_do(bytes_: list[int], least: int) -> None:
    promise = kept(*bytes_)
    promise.need(least, 0.0, waits=True)
    assert promise.most_bytes == min(bytes_)
    assert promise.wish_bytes is not None or least <= min(bytes_)
    if (wish := promise.wish_bytes) is not None:
        assert wish > least
        for rank in range(1, len(bytes_) + 1):
            promise.keeps(rank, "there", max(wish, bytes_[rank - 1]))
        promise.asked(wish)
        assert promise.wish_bytes is None
    assert promise.bound_bytes is None
    assert promise.remark(1) is None
    assert promise.given_up(PATIENCE_S) is None


def test_nothing_is_kept_elsewhere() -> None:
    promise = kept()
    promise.need(GB, 0.0, waits=True)
    assert (promise.most_bytes, promise.bound_bytes, promise.wish_bytes) == (None, None, None)
    assert promise.remark(1) is None
    assert promise.given_up(PATIENCE_S) is None


def test_who_keeps_too_little_is_named() -> None:
    promise = kept(4 * GB, 2 * GB)
    promise.need(3 * GB, 0.0, waits=False)
    assert promise.remark(0) is None
    assert promise.remark(2) == (
        "2 requests wait for memory elsewhere: studio2 keeps 2.0 GB for a rank, and 3.0 GB are "
        "needed"
    )


def test_a_bound_is_known_once_all_have_answered() -> None:
    promise = kept(2 * GB)
    promise.need(3 * GB, 0.0, waits=True)
    wish = promise.wish_bytes
    assert wish is not None
    assert promise.bound_bytes is None
    promise.asked(wish)
    assert promise.bound_bytes == 2 * GB
    promise.forget()
    assert promise.bound_bytes is None


def test_who_waits_in_vain_is_given_up() -> None:
    promise = kept(2 * GB)
    promise.need(3 * GB, 10.0, waits=True)
    promise.need(3 * GB, 20.0, waits=True)
    assert promise.given_up(9.0 + PATIENCE_S) is None
    reason = promise.given_up(10.0 + PATIENCE_S)
    assert reason is not None
    assert "studio1 keeps 2.0 GB" in reason
    promise.need(3 * GB, 70.0, waits=False)
    assert promise.given_up(200.0) is None
