"""The prompt of a completion: what is one, and what the rest costs."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc

import msgspec
import pytest
from msgspec import Raw

from gateway.http.openai.chat import ChatBody
from gateway.http.openai.completions import CompletionBody, parse_inputs
from gateway.http.wire.bodies import beside_the_loop
from gateway.system.refusal import Refusal
from protocol.message_base import pack
from protocol.requests import (
    Prompt,
    TextPrompt,
    TokenPrompt,
)


def _parse(text: str | bytes) -> list[Prompt]:
    body = b'{"model":"m","prompt":%s}' % (text.encode() if isinstance(text, str) else text)
    return parse_inputs(msgspec.json.decode(body, type=CompletionBody).prompt, "prompt", 128)


@pytest.mark.parametrize(
    ("value", "prompts"),
    [
        ("Hello", [TextPrompt("Hello")]),
        ("", [TextPrompt("")]),
        (['Hello, [you], and "you"'], [TextPrompt('Hello, [you], and "you"')]),
        (["a", "[b]"], [TextPrompt("a"), TextPrompt("[b]")]),
        ([1, 2, 3], [TokenPrompt(pack([1, 2, 3]))]),
        ([[1, 2, 3]], [TokenPrompt(pack([1, 2, 3]))]),
        ([[1], [2]], [TokenPrompt(pack([1])), TokenPrompt(pack([2]))]),
        (['"\\' * 200] * 128, [TextPrompt('"\\' * 200)] * 128),
    ],
)
def test_texts_and_tokens_are_prompts(value: object, prompts: list[Prompt]) -> None:
    assert _parse(json.dumps(value)) == prompts
    assert _parse(json.dumps(value, indent=2)) == prompts


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        True,
        {},
        [],
        [[]],
        [[[1]]],
        ["a"] * 129,
        [[1]] * 129,
        ["a", 1],
        [1, "a"],
        [[1], "a"],
        ["a", [1]],
        [True, False],
        [None],
        [1.5],
        [-1],
        [1 << 32],
        [1 << 70],
    ],
)
def test_invalid_prompts_are_refused(value: object) -> None:
    with pytest.raises(Refusal) as caught:
        _parse(json.dumps(value))
    assert (caught.value.code, caught.value.param) == ("invalid_request_error", "prompt")


@pytest.mark.parametrize("item", ["[]", "[[]]", "{}", '""', '"a"', "null", "[[[[]]]]"])
def test_lists_of_megabytes_are_not_built(item: str) -> None:
    text = f"[{item}{f',{item}' * (4_000_000 // (len(item) + 1))}]"
    tracemalloc.start()
    try:
        with pytest.raises(Refusal):
            _parse(text)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * len(text)


def test_too_many_tokens_are_counted_before_they_are_decoded() -> None:
    with pytest.raises(Refusal) as caught:
        parse_inputs(Raw(b"[1" + b",1" * 2_000_000 + b"]"), "prompt", 128)
    assert caught.value.code == "context_length_exceeded"


async def test_the_loop_turns_while_a_million_messages_are_decoded() -> None:
    message = b'{"role":"user"},'
    body = b'{"model":"m","messages":[%s]}' % (message * 1_000_000)[:-1]
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    turning = asyncio.create_task(turn())
    await asyncio.sleep(0)
    began = time.monotonic()
    decoded = await beside_the_loop(len(body), _decode_chat, body)
    print(f"{time.monotonic() - began:.2f} s, {turns} turns")
    turning.cancel()
    assert len(decoded.messages) == 1_000_000
    assert turns >= 5


def _decode_chat(body: bytes) -> ChatBody:
    return msgspec.json.decode(body, type=ChatBody)
