"""Gemma's calls: `call:NAME{KEY:VALUE,...}`, where strings stand between two equal tags.

mlx-lm's parsers take minutes for some texts of that kind, and one of them reads no nested objects.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from worker.text.readers import Parse

_HEAD: Final = re.compile(r"[\s,]*call:([\w.:/-]+)\s*(?=\{)")
_BARE: Final = re.compile(r"[^,{}\[\]<]+")
_KEY: Final = re.compile(r"\s*([^:,{}\[\]]+?)\s*:\s*")
_SPACE: Final = re.compile(r"\s*")
_MOST_DEPTH: Final = 64


def gemma_calls(quote: str) -> Parse:
    """A parser for texts whose strings stand between `quote`."""

    def parse(text: str, _definitions: Any) -> list[Any]:
        calls: list[Any] = []
        reader = _Text(text.strip(), quote)
        while reader.at < len(reader.text):
            match = reader.expect(_HEAD)
            calls.append({"name": match[1], "arguments": reader.value(0)})
        return calls

    return parse


class _Text:
    """Raises ValueError where it can't be read."""

    def __init__(self, text: str, quote: str) -> None:
        self.text = text
        self.at = 0
        self._quote = quote

    def expect(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError(f"Unreadable from character {self.at} on.")
        self.at = match.end()
        return match

    def value(self, depth: int) -> Any:
        if depth > _MOST_DEPTH:
            raise ValueError("Nested too deep.")
        if self._take(self._quote):
            return self._string()
        if self._take("{"):
            return self._object(depth)
        if self._take("["):
            return self._list(depth)
        bare = self.expect(_BARE)[0].strip()
        try:
            return json.loads(bare)
        except ValueError:
            return bare

    def _string(self) -> str:
        end = self.text.index(self._quote, self.at)
        string = self.text[self.at : end]
        self.at = end + len(self._quote)
        return string

    def _object(self, depth: int) -> dict[str, Any]:
        members = {}
        while not self._closes("}"):
            key = self.expect(_KEY)[1].removeprefix(self._quote).removesuffix(self._quote)
            members[key] = self.value(depth + 1)
        return members

    def _list(self, depth: int) -> list[Any]:
        items = []
        while not self._closes("]"):
            items.append(self.value(depth + 1))
        return items

    def _closes(self, bracket: str) -> bool:
        self.expect(_SPACE)
        if self._take(bracket):
            return True
        self._take(",")
        self.expect(_SPACE)
        return self._take(bracket)

    def _take(self, text: str) -> bool:
        taken = self.text.startswith(text, self.at)
        self.at += len(text) * taken
        return taken
