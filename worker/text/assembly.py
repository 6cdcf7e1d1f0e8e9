"""What an answer has become: its parts, in order."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from mlx_lm.generate import TextStateMachine

from protocol.parts import AnswerPart, Reasoning, Text, ToolCall

_Kind: TypeAlias = Literal["text", "reasoning", "arguments"]

# A longer run of white space is something that the model says.
_MOST_HELD_SPACE: Final = 64


class Assembly:
    """Puts parts together. White space beside a tag belongs to the tag, and nobody gets it.

    Stop sequences are looked for in the text alone. What ends an answer is what its reader sees:
    models quote anything while they think, and arguments that stop in the middle are of no use.
    """

    def __init__(
        self,
        stop: tuple[str, ...],
        *,
        parallel: bool = True,
        plain: bool = False,
        include_stop: bool = False,
    ) -> None:
        """`plain`: there are no tags, and all is text. With `include_stop` the stop sequence that
        ends it is a part of the text.
        """
        self._include_stop = include_stop
        self._stops: Any = None
        self._sequences = stop
        if stop:
            machine = TextStateMachine({"normal": [(each, None) for each in stop]})
            self._stops = machine.make_state()
        self._parallel = parallel
        self._plain = plain
        self._parts: list[AnswerPart] = []
        self._kind: _Kind = "text"
        self._pieces: list[str] = []
        self._held = ""
        self._keeps_space = False
        self._after_tag = False
        self._calls = 0
        # Counts what belongs to calls that can't be taken back any more.
        self.committed = 0
        self.in_call = False
        # By a stop sequence, or by the only call that is wanted.
        self.stopped = False
        self.stop_sequence: str | None = None
        self.has_all_calls = False

    @property
    def calls(self) -> int:
        return self._calls

    def take(self) -> list[AnswerPart]:
        """What was added since the last time."""
        self._close_piece()
        parts, self._parts = self._parts, []
        return parts

    def text(self, text: str) -> None:
        if self._plain:
            self._put("text", self._until_stop(text))
            return
        text = self._without_space_after_tag(text, "text")
        self._put_trimmed("text", self._until_stop(text))

    def reasoning(self, text: str) -> None:
        self._put_trimmed("reasoning", self._without_space_after_tag(text, "reasoning"))

    def tag(self) -> None:
        """Here was one that counts, or what stands for one."""
        self._flush_stops()
        self._held = ""
        self._keeps_space = False
        self._after_tag = True

    def only_text(self) -> None:
        """No tag follows, and all white space counts."""
        self._plain = True

    def begin(self, name: str) -> None:
        self.tag()
        self._close_piece()
        self._kind = "arguments"
        self._parts.append(ToolCall(self._calls, "", name))
        self._calls += 1
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
        """What was read last belongs to the call before it."""
        self.committed += 1

    def finish(self) -> None:
        """The answer is over: what may have been more than text is no more than that."""
        self._flush_stops()
        self._put(self._kind, self._held)
        self._held = ""

    def _until_stop(self, text: str) -> str:
        if self._stops is None or not text:
            return text
        if self.stopped:
            return ""
        held = self._stops[-1]
        self._stops, emitted, state = TextStateMachine.step(self._stops, text)
        self.stopped = state is None
        if not self.stopped:
            return str(emitted)
        seen = str((held + text).removesuffix(self._stops[-1]))
        self.stop_sequence = max(filter(seen.endswith, self._sequences), key=len)
        return seen if self._include_stop else str(emitted)

    def _flush_stops(self) -> None:
        if self._stops is None or self.stopped:
            return
        self._stops, rest, _ = TextStateMachine.flush(self._stops)
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
                self._parts.append(ToolCall(self._calls - 1, text))
