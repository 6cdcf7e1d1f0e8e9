"""The texts of an embeddings request: what are some, and what the rest costs."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from msgspec import Raw

from gateway.http.openai.completions import Input, parse_inputs
from gateway.http.openai.vectors import MOST_INPUTS
from gateway.system.refusal import Refusal
from protocol.message_base import pack
from protocol.requests import TextPrompt, TokenPrompt


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("Hello", (TextPrompt("Hello"),)),
        ("", (TextPrompt(""),)),
        (['a, "b"', "[c]", ""], (TextPrompt('a, "b"'), TextPrompt("[c]"), TextPrompt(""))),
        ([1, 2], (TokenPrompt(pack([1, 2])),)),
        ([[1, 2], [3]], (TokenPrompt(pack([1, 2])), TokenPrompt(pack([3])))),
        (["x"] * MOST_INPUTS, (TextPrompt("x"),) * MOST_INPUTS),
        ([[7]] * MOST_INPUTS, (TokenPrompt(pack([7])),) * MOST_INPUTS),
    ],
)
def test_texts_and_tokens_are_inputs(value: object, inputs: tuple[Input, ...]) -> None:
    assert parse_inputs(Raw(json.dumps(value).encode()), "input", MOST_INPUTS) == list(inputs)
    assert parse_inputs(Raw(json.dumps(value, indent=2).encode()), "input", MOST_INPUTS) == list(
        inputs
    )


@pytest.mark.parametrize(
    "value",
    [None, 7, {}, [], [[]], [[1], []], ["a", 1], [1, "a"], [[1], "a"], [-1], [1 << 32], [1.5]],
)
def test_invalid_inputs_are_refused(value: object) -> None:
    with pytest.raises(Refusal) as refused:
        parse_inputs(Raw(json.dumps(value).encode()), "input", MOST_INPUTS)
    assert (refused.value.status, refused.value.param) == (400, "input")


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b'"",' * 2_000_000 + b'""]',
        b"[" + b"[1]," * 2_000_000 + b"[1]]",
        b"[" * 4_000_000,
        b"[" + b"1," * 3_000_000 + b"1]",
        b'["' + b"\\\\" * 2_000_000,
    ],
)
def test_too_much_is_refused_before_it_is_built(text: bytes) -> None:
    raw = Raw(text)
    tracemalloc.start()
    try:
        with pytest.raises(Refusal):
            parse_inputs(raw, "input", MOST_INPUTS)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(text) + 1_000_000
    finally:
        tracemalloc.stop()
