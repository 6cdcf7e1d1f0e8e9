"""gpt-oss's answers: messages on channels, each with a header."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import regex

from worker.text.assembly import Assembly
from worker.text.splitter import markers

_State: TypeAlias = Literal["header", "text", "reasoning", "call"]

START: Final = "<|start|>"
MESSAGE: Final = "<|message|>"
# What ends a message; models leave out the end and begin the next one.
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_HEADER: Final = regex.compile(
    r"\s*(?:<\|start\|>)?\s*(?:assistant)?\s*(?:to=(?P<early>[\w.:/-]+)\s*)?"
    r"(?:<\|channel\|>\s*(?P<channel>analysis|commentary|final)\s*(?:to=(?P<late>[\w.:/-]+)\s*)?"
    r"(?:[\w ]*)(?:<\|constrain\|>\s*[\w ]*)?)?<\|message\|>"
)
_MOST_HEADER_CHARACTERS: Final = 256


class HarmonySplitter:
    """Analysis is reasoning; a message to a function is a call; all others are text."""

    def __init__(self, assembly: Assembly, *, calls: bool, header: str | None) -> None:
        """`header` is what the prompt has of one at its end, None if it ends in no message of the
        assistant's.
        """
        self._assembly = assembly
        self._calls = calls
        self._state: _State = "text" if header is None else "header"
        self._header = ""
        # So many characters of it are the prompt's.
        self._prompted = len(header or "")
        self._pending = ""
        # A call that has no argument yet, by its name.
        self._name: str | None = None
        self._final = False
        self._settled = False
        if header is not None:
            self.feed(header)

    @property
    def reasoning(self) -> bool:
        return self._state == "reasoning"

    def settle(self) -> None:
        """The final message is the last."""
        self._settled = self._final

    def feed(self, text: str) -> None:
        self._pending += text
        going_on = True
        while going_on and self._pending and not self._over:
            going_on = self._read_header() if self._state == "header" else self._read_message()

    def finish(self, *, complete: bool) -> None:
        if self._over:
            return
        pending, self._pending = self._pending, ""
        if self._state == "header":
            # Headers after a message's end say nothing alone.
            self._header += pending
            if not _HEADER.fullmatch(self._header, partial=True):
                self._assembly.text(self._take_header())
        else:
            self._give(pending)
            self._end_message()

    @property
    def _over(self) -> bool:
        return self._assembly.stopped or self._assembly.has_all_calls

    def _read_header(self) -> bool:
        text, self._pending = self._pending, ""
        for at, character in enumerate(text):
            self._header += character
            match = _HEADER.fullmatch(self._header, partial=True)
            if match is None or len(self._header) > _MOST_HEADER_CHARACTERS:
                self._to("text")
                self._pending = self._take_header() + text[at + 1 :]
                return self._give_first()
            if not match.partial:
                self._pending = text[at + 1 :]
                self._begin_message(match)
                return True
        return False

    def _give_first(self) -> bool:
        # What looked like a header may begin with what ends a message.
        self._assembly.text(self._pending[0])
        self._pending = self._pending[1:]
        return True

    def _begin_message(self, match: regex.Match[str]) -> None:
        recipient = match["early"] or match["late"]
        if recipient is not None and self._calls:
            self._name = recipient.removeprefix("functions.")
            self._to("call")
            return
        if recipient is not None:
            self._to("text")
            self._assembly.text(self._take_header())
            return
        self._take_header()
        self._final = match["channel"] == "final"
        self._to("reasoning" if match["channel"] == "analysis" else "text")

    def _take_header(self) -> str:
        header = self._header[self._prompted :]
        self._header, self._prompted = "", 0
        return header

    def _to(self, state: _State) -> None:
        self._state = state
        self._assembly.tag()

    def _read_message(self) -> bool:
        ends = () if self._settled else _ENDS
        text, marker, self._pending = markers(ends).cut(self._pending)
        self._give(text)
        if marker is None or self._over:
            return False
        self._end_message()
        self._to("header")
        self._header = marker if marker in ("<|start|>", "<|channel|>") else ""
        return True

    def _give(self, text: str) -> None:
        if not text:
            return
        match self._state:
            case "reasoning":
                self._assembly.reasoning(text)
            case "call":
                self._give_arguments(text)
            case _:
                self._assembly.text(text)

    def _give_arguments(self, text: str) -> None:
        if self._name is not None:
            text = text.lstrip()
            if not text:
                return
            if text[0] != "{":
                self._give_up(text)
                return
            self._assembly.begin(self._name)
            self._name = None
            self._take_header()
        self._assembly.arguments(text)

    def _give_up(self, text: str) -> None:
        self._name = None
        self._state = "text"
        self._assembly.text(self._take_header() + text)

    def _end_message(self) -> None:
        if self._assembly.in_call:
            self._assembly.end()
        elif self._name is not None:
            self._give_up("")
