"""Bodies that are refused before they are read, and texts with half of a character."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec import Raw, Struct
from starlette.requests import Request
from starlette.types import Message

from gateway.http.wire import bodies
from gateway.requests.share import SHARE, ByteBudget, Share
from gateway.system.refusal import Refusal

PAIR = rb"\ud83d\ude00"


class _Body(Struct):
    text: str
    later: Raw = Raw(b"null")


async def _decoded(body: bytes, declared: bytes | None = None) -> str:
    asked = 0

    async def receive() -> Message:
        nonlocal asked
        asked += 1
        assert declared is None, "it was asked for"
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [] if declared is None else [(b"content-length", declared)]
    state = {SHARE: Share(ByteBudget(1 << 30))}
    request = Request({"type": "http", "headers": headers, "state": state}, receive)
    return (await bodies.read_json(request, _Body)).text


@pytest.mark.parametrize("declared", [bodies.MAX_BODY_BYTES + 1, 1 << 62])
def test_what_declares_too_much_is_not_asked_for(declared: int) -> None:
    with pytest.raises(Refusal, match="larger than 32 MiB") as raised:
        asyncio.run(_decoded(b"", str(declared).encode()))
    assert raised.value.status == 413


def test_whole_characters_are_taken() -> None:
    assert asyncio.run(_decoded(b'{"text": "%b \\\\ud83d"}' % PAIR)) == "\U0001f600 \\ud83d"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (rb"\ud83d", 10),
        (rb"ab\ude00 and more", 12),
        (PAIR + rb"\ud83dA", 22),
        (rb"\\\ud83d\n", 12),
        (rb"\ud83d\ud83d\ude00", 10),
        (b"\xed\xa0\xbd", 10),
    ],
)
def test_half_of_one_is_named(text: bytes, at: int) -> None:
    with pytest.raises(Refusal, match=f"at byte {at} a string has half of a character") as raised:
        asyncio.run(_decoded(b'{"text": "%b"}' % text))
    assert raised.value.code == "invalid_request_error"


@pytest.mark.parametrize(
    "body", [b'{"text": "%b"' % PAIR, b'{"text": "\\u12"}', b'{"text": "\xff"}']
)
def test_other_mistakes_are_none_of_that(body: bytes) -> None:
    with pytest.raises(Refusal, match="not valid JSON") as raised:
        asyncio.run(_decoded(body))
    assert "half" not in raised.value.message


@pytest.mark.parametrize("before", [0, 1, (1 << 20) - 22, (1 << 20) - 20, 3 << 20])
@pytest.mark.parametrize("field", ["later", "unknown"])
@pytest.mark.parametrize("wrong", [b"\xb1", b"\xe2\x82", b"\xf5\x80"])
async def test_what_is_decoded_later_is_utf_8_too(wrong: bytes, field: str, before: int) -> None:
    begin = b'{"text": "%b", "%b": "\xc3\xa9' % (b"a" * before, field.encode())
    with pytest.raises(Refusal, match=f"at byte {len(begin)} it is not UTF-8"):
        await _decoded(b'%b%b"}' % (begin, wrong))


async def test_characters_may_be_of_any_length_at_any_place() -> None:
    text = "aé€😀" * 300_000
    for shift in range(4):
        body = json.dumps({"text": "b" * shift + text}, ensure_ascii=False).encode()
        assert await _decoded(body) == "b" * shift + text


@pytest.mark.parametrize("unit", [b"[]", b'{"a":1}', b"[[[[]]]]"])
async def test_more_lists_than_can_be_decoded_beside_others_are_refused(unit: bytes) -> None:
    """Also where nothing would read them."""
    rest = b",".join([unit] * bodies._MOST_BRACKETS)
    with pytest.raises(Refusal, match="opening brackets and braces, of 1,048,576 at most"):
        await _decoded(b'{"text": "a", "rest": [%s]}' % rest)


async def test_a_long_text_may_have_as_many_brackets_as_code_has() -> None:
    text = "while (a[i]) { b[i] = f(c[i]); }\n" * 200_000
    assert await _decoded(b'{"text": %s}' % json.dumps(text).encode()) == text


@pytest.mark.parametrize("length", [0, 1, bodies._COUNTED_BYTES])
@pytest.mark.parametrize("bad", [b"\xff", b"\xc3"])
def test_what_is_decoded_later_is_text_too(length: int, bad: bytes) -> None:
    body = b'{"text": "a", "later": ["%b%b"]}' % (b"x" * length, bad)
    with pytest.raises(Refusal, match="it is not UTF-8"):
        asyncio.run(_decoded(body))


def test_characters_across_the_pieces_are_whole() -> None:
    text = "a" + "é" * bodies._COUNTED_BYTES
    body = json.dumps({"text": text}, ensure_ascii=False).encode()
    assert asyncio.run(_decoded(body)) == text
