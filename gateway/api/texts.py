"""The texts of an embeddings request, from their JSON text to what a worker gets.

They are counted before anything is built: of 32 MiB of empty texts an interpreter would make a
gigabyte.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw

from gateway.dispatch.refusal import Refusal
from protocol.messages import TextPrompt, TokenPrompt
from protocol.tokens import LARGEST_TOKEN_ID, pack

# OpenAI's bound.
MOST_INPUTS: Final = 2048
_MOST_TOKENS: Final = 2_000_000
STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)

Input: TypeAlias = TextPrompt | TokenPrompt


def parse_inputs(raw: Raw) -> tuple[Input, ...]:
    """A text, a list of texts, a list of token ids, or a list of such lists.

    Raises:
        Refusal: it is something else, or too much.
    """
    text = bytes(raw).strip()
    inner = text[1:].lstrip()
    try:
        if text.startswith(b'"'):
            return (TextPrompt(msgspec.json.decode(text, type=str)),)
        if text.startswith(b"[") and inner.startswith(b'"'):
            _check_number(sum(1 for _ in islice(STRING.finditer(text), MOST_INPUTS + 1)))
            return tuple(TextPrompt(each) for each in msgspec.json.decode(text, type=list[str]))
        if text.startswith(b"[") and inner.startswith(b"["):
            _check_number(text.count(b"[") - 1)
            _check_tokens(text)
            lists = msgspec.json.decode(text, type=list[list[int]])
            return tuple(map(_tokens, lists))
        if text.startswith(b"[") and not inner.startswith(b"]"):
            _check_tokens(text)
            return (_tokens(msgspec.json.decode(text, type=list[int])),)
    except msgspec.DecodeError:
        # What can't be one of these is named below.
        pass
    raise Refusal(
        "invalid_request_error",
        "input: send a text, a list of texts, a list of token ids, or a list of such lists; not an "
        "empty one.",
        param="input",
    )


def _check_number(inputs: int) -> None:
    if inputs > MOST_INPUTS:
        raise Refusal(
            "invalid_request_error",
            f"input: there are more than {MOST_INPUTS:,}: send them in several requests.",
            param="input",
        )


def _check_tokens(text: bytes) -> None:
    if text.count(b",") >= _MOST_TOKENS:
        raise Refusal(
            "invalid_request_error",
            f"input: it has more than {_MOST_TOKENS:,} tokens: send them in several requests.",
            param="input",
        )


def _tokens(token_ids: list[int]) -> TokenPrompt:
    if not token_ids:
        raise msgspec.DecodeError
    if max(token_ids) > LARGEST_TOKEN_ID or min(token_ids) < 0:
        raise Refusal(
            "invalid_request_error",
            f"input: token ids are from 0 to {LARGEST_TOKEN_ID}.",
            param="input",
        )
    return TokenPrompt(pack(token_ids))
