from __future__ import annotations

from gateway.why.record import Facts, StateChange
from gateway.why.wait import wait_of
from tests.support.asked import asked, chat

AT = 1_000.0


def test_load_has_its_parts() -> None:
    record = asked(chat("Hello"), at=AT, first_token_s=10.0)
    # The moments of phases are of another clock, on which the request came at 0.
    record.trace.timing.phases = [("load", 0.0), ("queue", 7.0), ("prefill", 7.5), ("tokens", 10.0)]
    changes = (
        (-5.0, "unloaded"),
        (1.0, "waiting"),
        (4.0, "starting"),
        (5.0, "loading"),
        (7.0, "ready"),
    )
    facts = Facts((), tuple(StateChange(AT + begin, state) for begin, state in changes))
    wait = wait_of(record, facts, AT + 60.0)
    parts = {"load": 3.0, "memory": 3.0, "start": 1.0, "queue": 0.5, "prefill": 2.5}
    assert wait.parts_s == parts
    assert wait.first_token_s == 10.0
    assert wait.sentence.startswith("10.00 s; ")


def test_request_that_still_waits_is_marked() -> None:
    record = asked(chat("Hello"), at=AT, first_token_s=None)
    record.trace.timing.phases = [("queue", 0.0)]
    wait = wait_of(record, Facts(), AT + 3.0)
    assert (wait.first_token_s, wait.parts_s) == (None, {"queue": 3.0})
    assert wait.sentence == (
        "3.00 s so far, without a token; waiting for other requests took most of it, 3.00 s."
    )


def test_answer_after_a_lost_worker_has_its_waits() -> None:
    record = asked(chat("Hello"), at=AT, first_token_s=9.0)
    record.trace.timing.phases = [
        ("prefill", 0.0),
        ("parked", 2.0),
        ("resumed", 6.0),
        ("tokens", 9.0),
    ]
    assert wait_of(record, Facts(), AT + 9.0).parts_s == {"prefill": 5.0, "parked": 4.0}


def test_load_behind_a_queue_counts_as_a_load() -> None:
    record = asked(chat("Hello"), at=AT, first_token_s=9.0)
    record.trace.timing.phases = [("queue", 0.0), ("prefill", 8.0), ("tokens", 9.0)]
    changes = (
        (-9.0, "ready"),
        (1.0, "draining"),
        (2.0, "starting"),
        (5.0, "loading"),
        (7.0, "ready"),
    )
    facts = Facts((), tuple(StateChange(AT + begin, state) for begin, state in changes))
    parts = {"queue": 2.0, "drain": 1.0, "start": 3.0, "load": 2.0, "prefill": 1.0}
    assert wait_of(record, facts, AT + 9.0).parts_s == parts
