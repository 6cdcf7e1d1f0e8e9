"""An answer whose logits aren't valid is computed in other ways, and not without end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.workers.output_policy import TABLE, FailedTry, NextTry, OutputPolicy


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_the_table_has_every_try(*, goes_on: bool, plain: bool) -> None:
    assert FailedTry(goes_on, plain) in TABLE


def test_the_tries_of_an_answer_that_is_never_valid() -> None:
    policy = OutputPolicy()
    assert policy.failed(goes_on=True) is NextTry.COLD
    assert policy.failed(goes_on=False) is NextTry.PLAIN
    assert not policy.plain, "the present worker isn't"
    policy.starting()
    policy.ready()
    assert policy.plain
    assert policy.failed(goes_on=False) is NextTry.NONE


def test_a_plain_worker_that_dies_in_its_load_is_followed_by_another() -> None:
    policy = OutputPolicy()
    policy.failed(goes_on=False)
    policy.starting()
    policy.starting()
    assert policy.plain


def test_a_plain_worker_is_followed_by_an_ordinary_one() -> None:
    policy = OutputPolicy()
    policy.failed(goes_on=False)
    policy.starting()
    policy.ready()
    policy.starting()
    assert not policy.plain


def test_without_a_worker_nothing_is_plain() -> None:
    policy = OutputPolicy()
    policy.failed(goes_on=False)
    policy.given_up()
    policy.starting()
    assert not policy.plain


@given(st.lists(st.booleans(), max_size=50))
def test_failed_answers_replace_a_worker_once(tries: list[bool]) -> None:
    policy, replaced = OutputPolicy(), 0
    for goes_on in tries:
        if policy.failed(goes_on=goes_on) is NextTry.PLAIN:
            replaced += 1
            policy.starting()
            policy.ready()
    assert replaced <= 1
