"""What is free is shared by priority, and fairly among equals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.lending import Borrower, shares

BORROWERS = st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 50)), min_size=1, max_size=6).map(
    lambda rows: [Borrower(str(i), *row) for i, row in enumerate(rows)]
)


@given(pool=st.integers(-20, 200), borrowers=BORROWERS)
def test_any_pool_is_shared_as_it_should_be(pool: int, borrowers: list[Borrower]) -> None:
    lent = shares(pool, borrowers)
    assert set(lent) == {each.model_id for each in borrowers}
    assert sum(lent.values()) <= max(0, pool)
    for each in borrowers:
        assert 0 <= lent[each.model_id] <= each.wanted_bytes
    short = [each for each in borrowers if lent[each.model_id] < each.wanted_bytes]
    # What can't be divided among so many may stay.
    left = max(0, pool) - sum(lent.values())
    assert left == 0 or not short
    for each in short:
        for other in borrowers:
            if other.priority < each.priority:
                assert lent[other.model_id] == 0, "a lower priority has what a higher one wants"
            if other.priority == each.priority:
                assert lent[other.model_id] <= lent[each.model_id] + 1, "an equal has more"


def test_who_wants_little_has_it_and_the_rest_is_divided() -> None:
    borrowers = [Borrower("a", 0, 60), Borrower("b", 0, 10), Borrower("c", 0, 60)]
    assert shares(70, borrowers) == {"b": 10, "a": 30, "c": 30}
    assert shares(71, borrowers) == {"b": 10, "a": 30, "c": 31}
    above = [*borrowers, Borrower("first", 1, 50), Borrower("last", -1, 5)]
    assert shares(70, above) == {"first": 50, "b": 6, "a": 7, "c": 7, "last": 0}
    assert shares(-5, above) == dict.fromkeys(("first", "b", "a", "c", "last"), 0)
