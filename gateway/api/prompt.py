"""The prompts of a completion, from their JSON text to what a worker gets.

Nothing is built that isn't a prompt: of 32 MiB of nested lists an interpreter would make gigabytes.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

import msgspec
from msgspec import Raw

from gateway.dispatch.refusal import Refusal
from protocol.messages import Prompt, TextPrompt, TokenPrompt
from protocol.tokens import LARGEST_TOKEN_ID, pack

# Counted before they are decoded.
_MOST_TOKENS: Final = 2_000_000
_MOST_PROMPTS: Final = 128
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


def parse_prompts(raw: Raw) -> list[Prompt]:
    """A text, a list of token ids, or a list of either.

    Raises:
        Refusal: it is something else, or too long for any model, or too many.
    """
    text = bytes(raw).strip()
    inner = text[1:-1].strip() if text.startswith(b"[") else b""
    try:
        if text.startswith(b'"'):
            return [TextPrompt(msgspec.json.decode(text, type=str))]
        if inner.startswith(b'"'):
            _check_prompts(sum(1 for _ in islice(_STRING.finditer(inner), _MOST_PROMPTS + 1)))
            return [TextPrompt(each) for each in msgspec.json.decode(text, type=list[str])]
        if inner.startswith(b"[") and b'"' not in inner:
            _check_number(text)
            _check_prompts(inner.count(b"["))
            items = msgspec.json.decode(text, type=list[Raw])
            return [_tokens(bytes(each).strip()) for each in items]
        if text.startswith(b"["):
            return [_tokens(text)]
    except msgspec.DecodeError:
        # Raw text may be broken beneath its beginning.
        pass
    raise Refusal(
        "invalid_request_error",
        "prompt: send a text or a list of token ids, or a list of several of either.",
        param="prompt",
    )


def _check_prompts(number: int) -> None:
    if number > _MOST_PROMPTS:
        raise Refusal(
            "invalid_request_error",
            f"prompt: there are more than {_MOST_PROMPTS}: send several requests.",
            param="prompt",
        )


def _check_number(text: bytes) -> None:
    number = text.count(b",") + 1
    if number > _MOST_TOKENS:
        raise Refusal(
            "context_length_exceeded",
            f"prompt: it has {number:,} tokens, more than any model here takes.",
            param="prompt",
        )


def _tokens(text: bytes) -> TokenPrompt:
    _check_number(text)
    token_ids = msgspec.json.decode(text, type=list[int])
    if not token_ids:
        raise msgspec.DecodeError
    if max(token_ids) > LARGEST_TOKEN_ID or min(token_ids) < 0:
        raise Refusal(
            "invalid_request_error",
            f"prompt: token ids are from 0 to {LARGEST_TOKEN_ID}.",
            param="prompt",
        )
    return TokenPrompt(pack(token_ids))
