"""What a model writes as the arguments of a function, as calls of other kinds have it."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from gateway.http.responses.shape import ShellAction

_BEGIN: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_WHOLE_CHARACTERS: Final = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
# The other half of such a character may follow.
_HALF: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")
_HALF_LENGTH: Final = 6


def asked_for(arguments: str) -> dict[str, Any]:
    """Empty if they are no object."""
    try:
        found = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def action_of(arguments: str) -> ShellAction:
    """A command that is one text is for a shell."""
    found = asked_for(arguments)
    if isinstance(found.get("command"), str):
        found["command"] = ["bash", "-lc", found["command"]]
    try:
        return msgspec.convert({**found, "type": "exec"}, ShellAction)
    except msgspec.ValidationError:
        return ShellAction([])


class WrittenInput:
    """The text of a custom tool's input. `text` is what is known of it so far."""

    def __init__(self) -> None:
        self.text = ""
        self._arguments = ""
        self._at: int | None = None

    def add(self, piece: str) -> str:
        """What another piece of the arguments adds to the text."""
        self._arguments += piece
        if self._at is None:
            if (begin := _BEGIN.match(self._arguments)) is None:
                return ""
            self._at = begin.end()
        found = _WHOLE_CHARACTERS.match(self._arguments, self._at)
        assert found is not None
        written = found[0]
        if _HALF.search(written):
            written = written[:-_HALF_LENGTH]
        self._at += len(written)
        return self._take(_sound(json.loads(f'"{written}"', strict=False)))

    def end(self) -> str:
        """What the text still lacks. Arguments that are no object with an `input` are taken for
        what the model meant by them: their only text, or themselves.
        """
        whole = _input(self._arguments)
        if whole is None:
            whole = self._arguments if self._at is None else self.text
        whole = _sound(whole)
        return self._take(whole.removeprefix(self.text)) if whole.startswith(self.text) else ""

    def _take(self, text: str) -> str:
        self.text += text
        return text


def _input(arguments: str) -> str | None:
    """None: they were cut, or are no JSON."""
    try:
        found: Any = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict):
        texts = [each for each in found.values() if isinstance(each, str)]
        if isinstance(found.get("input"), str):
            return str(found["input"])
        if len(found) == len(texts) == 1:
            return texts[0]
    return found if isinstance(found, str) else arguments


def _sound(text: str) -> str:
    """Half a character is none."""
    return text.encode("utf-8", "replace").decode()
