from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from gateway.access.limits import Accounts, Book, Counts
from protocol.answers import Usage

USAGE = Usage(prompt_tokens=10, completion_tokens=5, cached_tokens=4)

days = st.dates().filter(lambda date: 2020 <= date.year <= 2030).map(lambda date: date.isoformat())
uses = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 100)), max_size=5)


def test_today_and_this_month() -> None:
    accounts = Accounts(Book())
    for day in ("2026-10-31", "2026-11-01", "2026-11-22", "2026-11-22"):
        accounts.add(day, "laptop", Counts.of(USAGE))
    accounts.add("2026-11-22", "phone", Counts.of(USAGE))
    assert accounts.on("2026-11-22", "laptop") == Counts(2, 20, 8, 10)
    assert accounts.in_month("2026-11-22", "laptop") == Counts(3, 30, 12, 15)
    assert accounts.on("2026-11-23", "laptop") == Counts()
    assert accounts.names == {"laptop", "phone"}


@given(
    st.lists(
        st.tuples(st.dates().filter(lambda item: item.year >= 1000), uses), min_size=1, max_size=30
    )
)
def test_no_count_of_this_month_is_lost(
    history: list[tuple[object, list[tuple[str, int]]]],
) -> None:
    accounts = Accounts(Book())
    counted: dict[tuple[str, str], int] = defaultdict(int)
    for date, used in sorted(history, key=lambda pair: str(pair[0])):
        day = str(date)
        for name, tokens in used:
            accounts.add(day, name, Counts(1, tokens, 0, 0))
            counted[day[:7], name] += tokens
        for name in ("a", "b"):
            assert accounts.in_month(day, name).prompt_tokens == counted[day[:7], name]
        assert len({text[:7] for text in accounts.book.days}) <= 2


def test_accounts_have_this_month_and_the_one_before() -> None:
    accounts = Accounts(Book())
    for day, days in (
        ("2026-10-31", {"2026-10-31"}),
        ("2026-11-30", {"2026-10-31", "2026-11-30"}),
        ("2026-12-01", {"2026-11-30", "2026-12-01"}),
        ("2027-01-01", {"2026-12-01", "2027-01-01"}),
        ("2027-02-28", {"2027-01-01", "2027-02-28"}),
        ("2027-03-01", {"2027-02-28", "2027-03-01"}),
    ):
        accounts.add(day, "laptop", Counts.of(USAGE))
        assert accounts.book.days.keys() == days


def test_a_clock_that_is_set_back_costs_nothing() -> None:
    accounts = Accounts(Book())
    accounts.add("2026-11-22", "a", Counts(1, 7, 0, 0))
    accounts.add("2020-01-01", "a", Counts(1, 1, 0, 0))
    assert accounts.in_month("2026-11-22", "a").prompt_tokens == 7


def test_knows_whether_there_is_something_to_keep() -> None:
    accounts = Accounts(Book())
    assert not accounts.pop_changed()
    accounts.add("2026-11-22", "a", Counts())
    assert accounts.pop_changed()
    assert not accounts.pop_changed()
    accounts.mark_changed()
    assert accounts.pop_changed()
