"""Splits the text of an answer at its tags, or at the headers of gpt-oss's messages ("harmony")."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final, Literal

import regex

from worker.calls.assembly import Assembly
from worker.calls.readers import BrokenCallError, Reader, span
from worker.calls.values import Schemas
from worker.text.format import AnswerFormat, CallBlock, MakeReader

# The most characters of a block that are held because they may turn out to be text.
_MOST_RAW_CHARACTERS: Final = 1 << 20
# Blocks of so many characters that turned out to be text are read again, at most so many times.
_LONG_CHARACTERS: Final = 1 << 12
_MOST_LONG: Final = 16
_MOST_LINE_CHARACTERS: Final = 1 << 12
# A line that begins a block of code, or ends one of the same kind and no more marks.
_FENCE: Final = regex.compile(r"\s*(?P<marks>`{3,}|~{3,})(?P<more>.*)")
# Tags that end a message. The last two begin the next message: some models leave out the end.
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
# Models repeat the channel, or write words behind it.
_HEADER: Final = regex.compile(
    r"\s*(?:<\|start\|>)?\s*(?:assistant)?\s*(?:to=(?P<early>[\w.:/-]+)\s*)?"
    r"(?:<\|channel\|>\s*(?P<channel>\w*)"
    r"(?:(?:[^<=]|<\|channel\|>\s*(?P<channel>\w*))*?\bto=(?P<late>[\w.:/-]+))?"
    r"(?:[^<=]|<\|channel\|>\s*(?P<channel>\w*))*(?:<\|(?:constrain|channel)\|>[^<=]*)*)?"
    r"<\|message\|>"
)
_MOST_HEADER_CHARACTERS: Final = 256


class Splitter:
    """Splits a text that comes in pieces, and gives its parts to an assembly. The parts don't
    depend on the pieces.
    """

    def __init__(self, assembly: Assembly, state: str) -> None:
        self._assembly = assembly
        self._state = state
        self._pending = ""

    @property
    def reasoning(self) -> bool:
        """Whether the next characters are reasoning."""
        return self._state == "reasoning"

    def expect_text(self) -> None:
        """If no tag is open, take everything from here on for text, even if it looks like a tag."""

    def expect_reasoning(self) -> None:
        """Note that the token that opens reasoning has come. Its text follows, now or later."""

    def feed(self, text: str) -> None:
        self._pending += text
        going_on = True
        while going_on and self._pending and not self._assembly.over:
            going_on = self._step()

    def finish(self, *, complete: bool) -> None:
        """End the answer. `complete`: the model itself ended it."""

    def _step(self) -> bool:
        """Read some of the pending text. Return False if the rest must wait for more text."""
        raise NotImplementedError


class PlainSplitter(Splitter):
    """Takes the whole answer for text."""

    def __init__(self, assembly: Assembly) -> None:
        super().__init__(assembly, "text")

    def _step(self) -> bool:
        text, self._pending = self._pending, ""
        self._assembly.text(text)
        return False


class TagSplitter(Splitter):
    """Splits a text at tags around reasoning and calls."""

    def __init__(
        self,
        format_: AnswerFormat,
        assembly: Assembly,
        definitions: Any,
        *,
        calls: bool,
        state: str,
        bounded: bool = False,
        has_opener: bool = False,
    ) -> None:
        """`state` is the first state: "normal", "reasoning" or a state of the format's turns.
        Without `calls` the tags of calls are text. `bounded`: a budget may close the reasoning by
        force. The model may then go on thinking in its text, and write the end tag of reasoning
        again; this second tag is dropped. `has_opener`: a single token opens reasoning.
        """
        super().__init__(assembly, state)
        self._schemas = Schemas(definitions)
        self._edges = _edges(format_, calls=calls)
        reasoning = format_.reasoning
        self._opener = None if reasoning is None else reasoning.start
        self._closer = None if reasoning is None else reasoning.end
        self._stray = self._closer if bounded else None
        if self._stray is not None:
            self._edges["normal"][self._stray] = "normal"
        self._markers: dict[str, Markers] = {
            name: markers(tuple(edges)) for name, edges in self._edges.items()
        }
        self._bare = format_.bare if calls else ()
        # How many tokens that open reasoning haven't been met as text yet; None: no token does.
        self._openers = 0 if has_opener else None
        # Whether only white space has come since the beginning or the last tag.
        self._fresh = True
        # The present line of text, and whether it is within a block of code.
        self._line = ""
        # The marks that began the present block of code.
        self._fence = ""
        self._reader: Reader | None = None
        self._raw: list[str] = []
        self._long = 0
        # Reasoning from a call on; None: there was none.
        self._draft: str | None = None
        # Whether the answer has ended within reasoning.
        self._unclosed = False

    def expect_reasoning(self) -> None:
        if self._openers is not None:
            self._openers += 1

    def expect_text(self) -> None:
        if self._state == "normal" and self._reader is None and not self._assembly.calls:
            self._markers["normal"] = markers(())
            self._bare = ()
            self._assembly.only_text()

    def _step(self) -> bool:
        if self._reader is not None:
            return self._read(self._reader)
        return self._scan()

    def finish(self, *, complete: bool) -> None:
        if self._drafts and (self._reader is not None or self._draft is not None):
            self._end_in_reasoning()
        self.feed("")
        while self._reader is not None and not self._assembly.over:
            try:
                rest = self._reader.close(complete=complete)
            except BrokenCallError:
                self._give_up("")
            else:
                if self._assembly.in_call:
                    self._assembly.arguments("".join(self._raw))
                self._end_block(rest, "")
            self.feed("")
        if not self._assembly.over:
            self._give(self._pending)

    def _scan(self) -> bool:
        """Read up to the next tag."""
        if self._fresh and self._bare and self._state == "normal":
            solid = self._pending.lstrip()
            matches = [bare.begins.match(solid, partial=True) for bare in self._bare]
            for bare, match in zip(self._bare, matches, strict=True):
                if match is not None and not match.partial:
                    self._give(self._pending[: -len(solid)])
                    self._pending = solid
                    self._start_block("", bare.make)
                    return True
            if any(match is not None for match in matches):
                return False
        text, marker, self._pending = self._markers[self._state].cut(self._pending)
        self._give(text)
        if marker is None or self._assembly.over:
            return False
        to = self._edges[self._state][marker]
        if isinstance(to, CallBlock):
            self._meet(marker, to)
        elif marker == self._opener and self._state == "normal" and not self._opens_reasoning():
            self._give(marker)
        elif marker != self._stray or self._state == "reasoning":
            self._flush_draft()
            self._assembly.tag()
            self._fresh = self._fresh or to != self._state
            self._state = to
            self._line = ""
        return True

    def _meet(self, tag: str, block: CallBlock) -> None:
        """Go on after the tag of a block of calls."""
        if self._long >= _MOST_LONG or (block.loose and (self._fence or self._line.strip())):
            self._give(tag)
        else:
            self._start_block(tag, block.make)

    def _opens_reasoning(self) -> bool:
        """Whether a tag that begins reasoning isn't quoted. Within a text only a token of its own
        at the beginning of a line begins reasoning, if the tag is a token.
        """
        is_token = bool(self._openers)
        if self._openers:
            self._openers -= 1
        return self._fresh or (is_token and not self._fence and not self._line.strip())

    @property
    def _drafts(self) -> bool:
        """Whether calls are only thought of. They count if the reasoning never ends."""
        return self._state == "reasoning" and not self._unclosed

    def _flush_draft(self) -> None:
        if self._draft is not None:
            self._assembly.reasoning(self._draft)
            self._draft = None

    def _end_in_reasoning(self) -> None:
        """End the answer within reasoning that has a call, or a block that has not ended."""
        text = "".join(self._raw) + self._pending
        self._raw.clear()
        self._reader = None
        if self._closer is not None and self._closer in text:
            # The block never ended, so the first tag within it ended the reasoning.
            thought, _, _ = text.partition(self._closer)
            self._give(thought)
            self._pending = text[len(thought) :]
        else:
            self._unclosed = True
            self._pending, self._draft = (self._draft or "") + text, None

    def _start_block(self, tag: str, make: MakeReader) -> None:
        self._fresh = False
        if self._state != "reasoning":
            # If the block is no call it is text, though it stands in a header.
            self._state = "normal"
        self._raw = [tag] if tag else []
        self._reader = make(Assembly(()) if self._drafts else self._assembly, self._schemas)

    def _read(self, reader: Reader) -> bool:
        text, self._pending = self._pending, ""
        for index, character in enumerate(text):
            committed = self._assembly.committed
            self._raw.append(character)
            try:
                rest = reader.read(character)
            except BrokenCallError:
                self._give_up(text[index + 1 :])
                return True
            if rest is not None:
                self._end_block(rest, text[index + 1 :])
                return True
            if self._assembly.committed != committed:
                self._raw.clear()
            if self._assembly.over:
                return False
            if len(self._raw) > _MOST_RAW_CHARACTERS:
                self._give_up(text[index + 1 :])
                return True
        return False

    def _end_block(self, rest: str, unread: str) -> None:
        """Go on after a block of calls, with the text `rest` that the reader has read, and with
        `unread`.
        """
        if self._drafts:
            block = "".join(self._raw)
            self._draft = (self._draft or "") + block[: len(block) - len(rest)]
        else:
            self._state = "normal"
            self._fresh = True
            self._assembly.tag()
        self._raw.clear()
        self._reader = None
        self._line = ""
        self._pending = rest + unread

    def _give_up(self, rest: str) -> None:
        """Take the tag of a block for text, since no call follows. All after it is read again."""
        first, *raw = self._raw
        self._raw.clear()
        self._reader = None
        self._long += len(raw) > _LONG_CHARACTERS
        self._give(first)
        self._pending = "".join(raw) + rest

    def _give(self, text: str) -> None:
        if not text:
            return
        match self._state:
            case "normal":
                self._fresh = self._fresh and text.isspace()
                *lines, line = (self._line + text).split("\n")
                self._line = line[:_MOST_LINE_CHARACTERS]
                for item in lines:
                    self._record_fence(item)
                self._assembly.text(text)
            case "reasoning" if self._draft is not None:
                self._draft += text
            case "reasoning":
                self._assembly.reasoning(text)

    def _record_fence(self, line: str) -> None:
        fence = _FENCE.match(line)
        if fence is None:
            return
        if not self._fence:
            self._fence = fence["marks"]
        elif fence["marks"].startswith(self._fence) and not fence["more"].strip():
            self._fence = ""


def _edges(format_: AnswerFormat, *, calls: bool) -> dict[str, dict[str, str | CallBlock]]:
    """For each state: its markers, with the state or the block that a marker leads to."""
    normal: dict[str, str | CallBlock] = dict.fromkeys(format_.dropped, "normal")
    edges = {"normal": normal}
    blocks = {call_block.start: call_block for call_block in format_.blocks} if calls else {}
    headed = any(to == "tool" for _, turns in format_.turns for _, to in turns)
    if not headed:
        normal.update(blocks)
    if format_.reasoning is not None:
        normal[format_.reasoning.start] = "reasoning"
        solid = {tag: block for tag, block in blocks.items() if not block.loose}
        edges["reasoning"] = {format_.reasoning.end: "normal", **solid}
    for state, turns in format_.turns:
        for marker, to in turns:
            known = edges.setdefault(state, {})
            known[marker] = to if to != "tool" else blocks.get(marker, "normal")
            if to != "tool":
                edges.setdefault(to, {})
    return edges


class HarmonySplitter(Splitter):
    """Splits gpt-oss's messages. A message in the channel "analysis" is reasoning, a message to a
    function is a call, and all other messages are text.
    """

    def __init__(self, assembly: Assembly, *, calls: bool, header: str | None) -> None:
        """`header` is the beginning of a header at the prompt's end; None if the prompt begins no
        message there.
        """
        super().__init__(assembly, "text" if header is None else "header")
        self._calls = calls
        self._header = ""
        # How many characters of the header the prompt has.
        self._prompted = len(header or "")
        # The name of a call that has no arguments yet.
        self._name: str | None = None
        self._arguments = span("{", assembly.arguments, "")
        self._final = False
        self._settled = False
        if header is not None:
            self.feed(header)

    def expect_text(self) -> None:
        """If the final message has begun, take everything from here on for its text."""
        self._settled = self._final

    def _step(self) -> bool:
        return self._read_header() if self._state == "header" else self._read_message()

    def finish(self, *, complete: bool) -> None:
        if self._assembly.over:
            return
        pending, self._pending = self._pending, ""
        if self._state == "header":
            # A header that is cut off is left out.
            self._header += pending
            quoted = complete and self._final and self._header.startswith("<|channel|>")
            if quoted or not _HEADER.fullmatch(self._header, partial=True):
                self._assembly.text(self._pop_header())
        else:
            self._give(pending)
            self._end_message()

    def _read_header(self) -> bool:
        text, self._pending = self._pending, ""
        for index, character in enumerate(text):
            self._header += character
            match = _HEADER.fullmatch(self._header, partial=True)
            if match is None or len(self._header) > _MOST_HEADER_CHARACTERS:
                self._to("text")
                self._pending = self._pop_header() + text[index + 1 :]
                return self._give_first()
            if not match.partial:
                self._pending = text[index + 1 :]
                self._start_message(match)
                return True
        return False

    def _give_first(self) -> bool:
        # The text, which is no header, may begin with a tag that ends messages. So its first
        # character is given alone: otherwise the tag would begin a header again.
        self._assembly.text(self._pending[0])
        self._pending = self._pending[1:]
        return True

    def _start_message(self, match: regex.Match[str]) -> None:
        recipient = match["early"] or match["late"]
        if recipient is not None and self._calls:
            self._name = recipient.removeprefix("functions.")
            self._to("call")
            return
        if recipient is not None:
            self._to("text")
            self._assembly.text(self._pop_header())
            return
        self._pop_header()
        self._final = match["channel"] == "final"
        self._to("reasoning" if match["channel"] == "analysis" else "text")

    def _pop_header(self) -> str:
        header = self._header[self._prompted :]
        self._header, self._prompted = "", 0
        return header

    def _to(self, state: Literal["header", "text", "reasoning", "call"]) -> None:
        self._state = state
        self._assembly.tag()

    def _read_message(self) -> bool:
        ends = () if self._settled else _ENDS
        text, marker, self._pending = markers(ends).cut(self._pending)
        self._give(text)
        if marker is None or self._assembly.over:
            return False
        if self._name is not None and marker == "<|call|>":
            self._give_arguments("{}")
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
            case "behind":
                # Models close more brackets than they have opened.
                if rest := text.lstrip(" \n}"):
                    self._state = "text"
                    self._assembly.text(rest)
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
            self._assembly.start_call(self._name)
            self._name = None
            self._pop_header()
            self._assembly.arguments("{")
            self._arguments = span("{", self._assembly.arguments, "")
            next(self._arguments)
            text = text[1:]
        for index, character in enumerate(text):
            try:
                self._arguments.send(character)
            except StopIteration:
                self._assembly.end()
                self._state = "behind"
                self._give(text[index + 1 :])
                return

    def _give_up(self, text: str) -> None:
        self._name = None
        self._state = "text"
        self._assembly.text(self._pop_header() + text)

    def _end_message(self) -> None:
        if self._assembly.in_call:
            self._assembly.end()
        elif self._name is not None:
            self._give_up("")


class Markers:
    """Finds markers in a text. No marker may be the beginning of another."""

    def __init__(self, markers: Iterable[str]) -> None:
        self._pattern = regex.compile("|".join(map(regex.escape, sorted(markers))) or r"\Zx")

    def cut(self, text: str) -> tuple[str, str | None, str]:
        """The text before the first marker, the marker, and the text after it. If there is no
        marker: the text that is in no marker, None, and the rest, which may begin a marker.
        """
        match = self._pattern.search(text, partial=True)
        if match is None:
            return text, None, ""
        if match.partial:
            return text[: match.start()], None, text[match.start() :]
        return text[: match.start()], match[0], text[match.end() :]


@cache
def markers(texts: tuple[str, ...]) -> Markers:
    return Markers(texts)
