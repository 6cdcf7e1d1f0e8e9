"""Text of others on this terminal."""

from __future__ import annotations

import unicodedata
from typing import Final

# Control characters steer a terminal; lone surrogates can't be encoded.
_LEFT_OUT: Final = ("Cc", "Cs")


def printable(text: str) -> str:
    """The text without characters such as those of escape codes; lines and tabs stay."""
    return "".join(
        each for each in text if each in "\n\t" or unicodedata.category(each) not in _LEFT_OUT
    )
