"""What a model isn't given of a conversation: the answer's header names it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

UNSEEN: Final = "(Here is a picture, which this model can't look at.)"
# What a client may make up by the thousand.
_MOST_NAMED: Final = 32
_TURNS: Final = ("user", "assistant")


def newest(roles: Sequence[str]) -> range:
    """The place of the user's message that is to be answered, unless an assistant's is behind it.
    Its pictures are refused by a model that can't look at any; earlier ones end no conversation.
    """
    last = max((place for place, each in enumerate(roles) if each in _TURNS), default=-1)
    return range(last, last + 1) if last >= 0 and roles[last] == "user" else range(0)


def left_out_header(names: Collection[str]) -> dict[str, str]:
    """Of an answer. The names are such as can stand in a header."""
    named = ", ".join(sorted(names)[:_MOST_NAMED])
    return {"x-bulkhead-left-out": named} if named else {}
