"""The turns of an agent that edits files: source text of this repository, and what a model that
obeys answers to it.
"""

from __future__ import annotations

import difflib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tokenizers import Tokenizer

from bench.copying import CONTEXT_LINES

Message = dict[str, Any]

_ROOT: Final = Path(__file__).parent.parent
_ROOMS: Final = ("gateway", "worker", "protocol")
# A model that copies compares so many tokens.
_COMPARED: Final = 12
_NAME: Final = re.compile(r"\b[a-z_]{4,}\b")
_SYSTEM: Final = "You are an agent that edits the files of a repository.\n\n"


class Turn(NamedTuple):
    """Messages that are added to the conversation, the answer that is expected, and its tokens."""

    messages: list[Message]
    expected: str
    tokens: int


class Edits:
    """Turns in which a tool shows `lines` lines of a file, and the answer writes them again with
    one line changed; or, each second turn, a tool shows a patch, and the answer repeats it. All
    depends on the seed and the repository alone.
    """

    def __init__(self, model: Path, seed: int, lines: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._random = random.Random(seed)
        self._lines = lines

    def system(self, tokens: int) -> Message:
        """A system prompt of about so many tokens."""
        text = _SYSTEM + (_ROOT / "docs" / "architecture.md").read_text("utf-8")
        offsets = self._tokenizer.encode(text).offsets
        return {"role": "system", "content": text[: offsets[min(tokens, len(offsets)) - 1][1]]}

    def turns(self) -> Iterator[Turn]:
        """Each file once."""
        files = sorted(path for room in _ROOMS for path in (_ROOT / room).rglob("*.py"))
        self._random.shuffle(files)
        number = 0
        for path in files:
            if turn := self._turn(path, patched=number % 2 == 1):
                number += 1
                yield turn

    def _turn(self, path: Path, *, patched: bool) -> Turn | None:
        """None if the file is too short, has no line that can be changed, or says the same in
        several places.
        """
        lines = path.read_text("utf-8").splitlines()[: self._lines]
        place = next(
            filter(lambda number: _can_change(lines, number), range(len(lines) // 2, 0, -1)), 0
        )
        if len(lines) < self._lines or not place:
            return None
        changed = [*lines[:place], _changed(lines[place]), *lines[place + 1 :]]
        name = str(path.relative_to(_ROOT))
        if patched:
            expected = _patch(name, lines, changed)
            asked = [*_shown("diff", name, expected), _message("user", "Apply this patch.")]
        else:
            expected = _text(changed)
            around = changed[place - CONTEXT_LINES : place + CONTEXT_LINES + 1]
            order = f"Write {name} with this.\n<change>\n{_text(around).rstrip()}</change>"
            asked = [*_shown("read_file", name, _text(lines)), _message("user", order)]
        tokens = self._tokenizer.encode(expected).ids
        return Turn(asked, expected, len(tokens)) if _says_nothing_twice(tokens) else None


def _can_change(lines: list[str], place: int) -> bool:
    """Whether the line has a name, and enough lines around it, of which the last isn't blank."""
    after = place + CONTEXT_LINES
    if place <= CONTEXT_LINES or after >= len(lines):
        return False
    return bool(lines[after].strip()) and _NAME.search(lines[place]) is not None


def _changed(line: str) -> str:
    """The line with its last name changed."""
    end = [match.end() for match in _NAME.finditer(line)][-1]
    return f"{line[:end]}_again{line[end:]}"


def _patch(name: str, lines: list[str], changed: list[str]) -> str:
    hunks = list(difflib.unified_diff(lines, changed, lineterm=""))[3:]
    head = f"*** Begin Patch\n*** Update File: {name}\n@@\n"
    return f"{head}{_text(hunks)}*** End Patch\n"


def _shown(tool: str, name: str, result: str) -> list[Message]:
    """A request for a file, a call of a tool, and its result."""
    function = {"name": tool, "arguments": json.dumps({"path": name})}
    call = {"id": f"call_{name}", "type": "function", "function": function}
    return [
        _message("user", f"Have a look at {name}."),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": result},
    ]


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _says_nothing_twice(tokens: list[int]) -> bool:
    runs = [tuple(tokens[index : index + _COMPARED]) for index in range(len(tokens) - _COMPARED)]
    return len(set(runs)) == len(runs)
