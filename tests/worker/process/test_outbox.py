"""What several steps added becomes one message."""

from __future__ import annotations

from protocol.answers import (
    AnswerPart,
    Delta,
    Guesses,
    Logprobs,
    Output,
    Reasoning,
    Text,
    TokenLogprob,
    Usage,
)
from worker.process.answering import Outbox


def _delta(request_id: str, token_id: int, *parts: AnswerPart) -> Delta:
    return Delta(request_id, (token_id,), parts)


def test_a_delta_for_each_request() -> None:
    outbox = Outbox()
    outbox.add(7, Delta("a", (1,), (Text("x"),), unenforced=("not",)))
    outbox.add(7, _delta("b", 2, Reasoning("m")))
    outbox.add(8, _delta("a", 3))
    outbox.add(8, _delta("b", 4, Reasoning("n"), Text("z")))
    outbox.add(9, Delta("a", (5,), (Text("y"),), "stop", Usage(3, 3), "y"))
    assert outbox.collect() == Output(
        step=9,
        deltas=(
            Delta("a", (1, 3, 5), (Text("xy"),), "stop", Usage(3, 3), "y", ("not",)),
            Delta("b", (2, 4), (Reasoning("mn"), Text("z"))),
        ),
    )
    assert outbox.collect() is None


def test_guesses_are_added_up() -> None:
    outbox = Outbox()
    for guesses in (Guesses(0, 3), Guesses(1, 0), Guesses(1, 0)):
        outbox.add(1, Delta("a", (1,), (), guesses=guesses))
    outbox.add(1, _delta("b", 2))
    output = outbox.collect()
    assert output is not None
    assert [delta.guesses for delta in output.deltas] == [Guesses(2, 3), Guesses(0, 0)]


def test_no_log_probability_is_lost() -> None:
    scores = [Logprobs((TokenLogprob(f"{index}", -1.0, ()),)) for index in range(3)]
    outbox = Outbox()
    for index, score in enumerate(scores):
        outbox.add(index, _delta("a", index, score, Text(f"{index}")))
    output = outbox.collect()
    assert output is not None
    assert output.deltas[0].parts == (
        Text("012"),
        Logprobs(tuple(token for logprobs in scores for token in logprobs.tokens)),
    )


def test_it_is_bounded() -> None:
    outbox = Outbox()
    for count in range(256):
        assert not outbox.full
        outbox.add(count, _delta("a", count))
    assert outbox.full
    outbox.collect()
    assert not outbox.full
