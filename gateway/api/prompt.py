"""The prompt of a completion, from its JSON text to what a worker gets.

Nothing is built that isn't a prompt: of 32 MiB of nested lists an interpreter would make gigabytes.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from gateway.dispatch.refusal import Refusal
from protocol.messages import Prompt, TextPrompt, TokenPrompt
from protocol.tokens import LARGEST_TOKEN_ID, pack

# Counted before they are decoded.
_MOST_TOKENS: Final = 2_000_000


def parse_prompt(raw: Raw) -> Prompt:
    """A text, a list of token ids, or a list of one of either.

    Raises:
        Refusal: it is something else, or too long for any model.
    """
    text = bytes(raw).strip()
    if inner := _only_item(text):
        text = inner
    try:
        if text.startswith(b'"'):
            return TextPrompt(msgspec.json.decode(text, type=str))
        if text.startswith(b"["):
            return _tokens(text)
    except msgspec.DecodeError:
        # Several behind each other are no JSON without the list around them.
        pass
    raise Refusal(
        "invalid_request_error",
        "prompt: send one text or one list of token ids; for several prompts send several "
        "requests.",
        param="prompt",
    )


def _only_item(text: bytes) -> bytes | None:
    """What stands in a list of texts or of lists, as if it were alone there."""
    inner = text[1:-1].strip() if text.startswith(b"[") else b""
    return inner if inner.startswith((b'"', b"[")) else None


def _tokens(text: bytes) -> TokenPrompt:
    number = text.count(b",") + 1
    if number > _MOST_TOKENS:
        raise Refusal(
            "context_length_exceeded",
            f"prompt: it has {number:,} tokens, more than any model here takes.",
            param="prompt",
        )
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
