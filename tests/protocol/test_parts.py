"""Parts of an answer, put together."""

from __future__ import annotations

import pytest

from protocol.answers import (
    AnswerPart,
    Logprobs,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCall,
    merged,
)

_A = Logprobs((TokenLogprob(b"a", -1.0),))
_B = Logprobs((TokenLogprob(b"b", -2.0),))


@pytest.mark.parametrize(
    ("parts", "together"),
    [
        ([], []),
        ([Text("a")], [Text("a")]),
        ([Text("a"), Text("b"), Text("c")], [Text("abc")]),
        ([Reasoning("a"), Reasoning("b"), Text("c")], [Reasoning("ab"), Text("c")]),
        ([Text("a"), Reasoning("b"), Text("c")], [Text("a"), Reasoning("b"), Text("c")]),
        (
            [ToolCall(0, "{", "f"), ToolCall(0, "}"), ToolCall(1, "", "g")],
            [ToolCall(0, "{}", "f"), ToolCall(1, "", "g")],
        ),
        ([_A], [_A]),
        ([_A, Text("a"), _B, Text("b")], [Text("ab"), Logprobs(_A.tokens + _B.tokens)]),
    ],
)
def test_neighbours_of_a_kind_become_one(
    parts: list[AnswerPart], together: list[AnswerPart]
) -> None:
    assert merged(parts) == together
