"""Texts or token ids, one or several, from their JSON text to what a worker gets.

They are counted before anything is built: of 32 MiB of nested lists or empty texts an interpreter
would make gigabytes.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Raw

from gateway.system.refusal import Refusal
from protocol.prompts import TextPrompt, TokenPrompt
from protocol.tokens import LARGEST_TOKEN_ID, pack

_MOST_TOKENS: Final = 2_000_000
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)

Input: TypeAlias = TextPrompt | TokenPrompt
_TOKENS: Final = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": 0, "maximum": LARGEST_TOKEN_ID},
}
# A field of a body, with what it may be, for the schema.
Inputs = Annotated[
    Raw,
    Meta(
        extra_json_schema={
            "anyOf": [
                {"type": "string"},
                {"type": "array", "minItems": 1, "items": {"type": "string"}},
                _TOKENS,
                {"type": "array", "minItems": 1, "items": _TOKENS},
            ]
        }
    ),
]


def parse_inputs(raw: Raw, param: str, most: int) -> list[Input]:
    """A text, a list of token ids, or a list of at most so many of either. `param` is the field.

    Raises:
        Refusal: it is something else, or too much.
    """
    text = bytes(raw).strip()
    inner = text[1:].lstrip() if text.startswith(b"[") else b""
    try:
        if text.startswith(b'"'):
            return [TextPrompt(msgspec.json.decode(text, type=str))]
        if inner.startswith(b'"'):
            _check_number(count_strings(text, most), param, most)
            return [TextPrompt(each) for each in msgspec.json.decode(text, type=list[str])]
        if inner.startswith(b"["):
            _check_number(text.count(b"[") - 1, param, most)
            _check_tokens(text, param)
            lists = msgspec.json.decode(text, type=list[list[int]])
            return [_tokens(each, param) for each in lists]
        if inner and not inner.startswith(b"]"):
            _check_tokens(text, param)
            return [_tokens(msgspec.json.decode(text, type=list[int]), param)]
    except msgspec.DecodeError:
        # What can't be one of these is named below.
        pass
    raise Refusal(
        "invalid_request_error",
        f"{param}: send a text, a list of token ids, or a list of several of either; not an empty "
        "one.",
        param=param,
    )


def count_strings(text: bytes, most: int) -> int:
    """How many strings a JSON text has, or one more than `most`."""
    return sum(1 for _ in islice(_STRING.finditer(text), most + 1))


def _check_number(number: int, param: str, most: int) -> None:
    if number > most:
        raise Refusal(
            "invalid_request_error",
            f"{param}: there are more than {most:,}: send them in several requests.",
            param=param,
        )


def _check_tokens(text: bytes, param: str) -> None:
    if text.count(b",") >= _MOST_TOKENS:
        raise Refusal(
            "context_length_exceeded",
            f"{param}: it has more than {_MOST_TOKENS:,} tokens, more than any model here takes.",
            param=param,
        )


def _tokens(token_ids: list[int], param: str) -> TokenPrompt:
    if not token_ids:
        raise msgspec.DecodeError
    if max(token_ids) > LARGEST_TOKEN_ID or min(token_ids) < 0:
        raise Refusal(
            "invalid_request_error",
            f"{param}: token ids are from 0 to {LARGEST_TOKEN_ID}.",
            param=param,
        )
    return TokenPrompt(pack(token_ids))
