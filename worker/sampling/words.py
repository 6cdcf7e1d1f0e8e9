"""Words that are not to be said, as sequences of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def banned_sequences(words: Iterable[str], tokenizer: Any) -> list[tuple[int, ...]]:
    """Of each word how it begins a text, and how it follows a space. vLLM bans both, too, but the
    second only if both have as many tokens, which leaves " the" where nothing but that is a token.
    A word that is spelled with other tokens, or is a part of a longer one, can be said.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for spelled in (word.lstrip(" "), f" {word.lstrip(' ')}"):
            token_ids = tuple(tokenizer.encode(spelled, add_special_tokens=False))
            if token_ids and spelled.strip(" "):
                found[token_ids] = None
    return list(found)
