"""Text of others on this terminal."""

from __future__ import annotations

import json
import unicodedata
from typing import Final

# Control characters steer a terminal; lone surrogates can't be encoded.
_LEFT_OUT: Final = ("Cc", "Cs")


def printable(text: str) -> str:
    """The text without characters such as those of escape codes; lines and tabs stay."""
    return "".join(
        each for each in text if each in "\n\t" or unicodedata.category(each) not in _LEFT_OUT
    )


def printable_json(content: object) -> str:
    """JSON with such characters escaped, all of them: JSON itself wants only some."""
    return "".join(
        f"\\u{ord(each):04x}" if each != "\n" and unicodedata.category(each) in _LEFT_OUT else each
        for each in json.dumps(content, indent=2, ensure_ascii=False)
    )
