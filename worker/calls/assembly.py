"""Puts text, reasoning and tool calls together as the parts of an answer, in order."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from protocol.answers import AnswerPart, Reasoning, Text, ToolCall
from worker.mlx_lm.text import StopTexts

_Kind: TypeAlias = Literal["text", "reasoning", "arguments"]

# The most white space that is held because a tag may follow. More is a part of the answer.
_MOST_HELD_SPACE: Final = 64


class Assembly:
    """Puts the parts of one answer together. White space beside a tag belongs to the tag, and is
    left out.

    Stop sequences are looked for in text, and not in reasoning and arguments: models quote anything
    while they think, and arguments that stop in the middle are of no use.
    """

    def __init__(
        self,
        stop: tuple[str, ...],
        *,
        parallel: bool = True,
        plain: bool = False,
        include_stop: bool = False,
    ) -> None:
        """Without `parallel` the first call ends the answer. `plain`: the answer has no tags, only
        text. With `include_stop` the text has the stop sequence that ended the answer.
        """
        self._stops = StopTexts(stop, include=include_stop)
        self._parallel = parallel
        self._plain = plain
        self._parts: list[AnswerPart] = []
        self._kind: _Kind = "text"
        self._pieces: list[str] = []
        self._held = ""
        self._keeps_space = False
        self._after_tag = False
        self.calls = 0
        # Grows when the characters read last are certainly a part of a call, and not text.
        self.committed = 0
        self.in_call = False
        # Whether one call is wanted, and is there.
        self.has_all_calls = False

    @property
    def stop_sequence(self) -> str | None:
        """The stop sequence that ended the answer; None if none did."""
        return self._stops.stop_sequence

    @property
    def over(self) -> bool:
        """Whether no part follows: a stop sequence or the only call has ended the answer."""
        return self.stop_sequence is not None or self.has_all_calls

    def collect(self) -> list[AnswerPart]:
        """The parts since the last `collect`."""
        self._close_piece()
        parts, self._parts = self._parts, []
        return parts

    def text(self, text: str) -> None:
        if self._plain:
            self._put("text", self._stops.feed(text))
            return
        text = self._without_space_after_tag(text, "text")
        self._put_trimmed("text", self._stops.feed(text))

    def reasoning(self, text: str) -> None:
        self._put_trimmed("reasoning", self._without_space_after_tag(text, "reasoning"))

    def tag(self) -> None:
        """Note a tag, or the beginning of a part without a tag. White space there is left out."""
        self._flush_stops()
        self._held = ""
        self._keeps_space = False
        self._after_tag = True

    def only_text(self) -> None:
        """Expect no tag any more. White space is a part of the answer from here on."""
        self._plain = True

    def start_call(self, name: str) -> None:
        self.tag()
        self._close_piece()
        self._kind = "arguments"
        self._parts.append(ToolCall(self.calls, "", name))
        self.calls += 1
        self.in_call = True
        self.committed += 1

    def arguments(self, text: str) -> None:
        self._put("arguments", text)
        self.committed += 1

    def end(self) -> None:
        self.in_call = False
        self.committed += 1
        self.has_all_calls = not self._parallel

    def commit(self) -> None:
        """Note that the characters read last belong to the call before them."""
        self.committed += 1

    def finish(self) -> None:
        """End the answer. Text that was held for a stop sequence or a tag becomes a part."""
        self._flush_stops()
        self._put(self._kind, self._held)
        self._held = ""

    def _flush_stops(self) -> None:
        rest = self._stops.flush()
        if rest:
            (self._put if self._plain else self._put_trimmed)("text", rest)

    def _without_space_after_tag(self, text: str, kind: _Kind) -> str:
        if self._kind != kind and not self._after_tag:
            self.tag()
        if self._after_tag:
            text = text.lstrip()
            self._after_tag = not text
        return text

    def _put_trimmed(self, kind: _Kind, text: str) -> None:
        if not text:
            return
        text = self._held + text
        solid = text.rstrip()
        self._keeps_space = self._keeps_space and not solid
        if self._keeps_space or len(text) - len(solid) > _MOST_HELD_SPACE:
            self._keeps_space = True
            solid = text
        self._held = text[len(solid) :]
        self._put(kind, solid)

    def _put(self, kind: _Kind, text: str) -> None:
        if not text:
            return
        if kind != self._kind:
            self._close_piece()
            self._kind = kind
        self._pieces.append(text)

    def _close_piece(self) -> None:
        text = "".join(self._pieces)
        self._pieces = []
        if not text:
            return
        match self._kind:
            case "text":
                self._parts.append(Text(text))
            case "reasoning":
                self._parts.append(Reasoning(text))
            case "arguments":
                self._parts.append(ToolCall(self.calls - 1, text))
