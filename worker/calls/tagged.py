"""Reads calls whose arguments stand between tags: one reader, and a form for each family.

A value may quote any tag: agents edit files about calls. So a value ends where its block goes on,
before another argument or before the end of the call and of the block.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import regex

from worker.calls.assembly import Assembly
from worker.calls.readers import BrokenCallError, give_calls
from worker.calls.values import Schemas, as_json

_MOST_CHARACTERS: Final = 1 << 20
_MOST_HEAD_CHARACTERS: Final = 512
# A block is over when so much text has followed it.
_MOST_REST_CHARACTERS: Final = 1 << 14
# Ends of a block in an answer that goes on.
_MOST_READINGS: Final = 64
_SPACE: Final = regex.compile(r"\s*")
_CDATA: Final = r"\s*<!\[CDATA\[(?P<text>.*?)\]\]>\s*"
_OBJECT: Final = json.JSONDecoder(strict=False)
_CDATA_BEGIN: Final = regex.compile(r"\s*<!\[CDATA\[")
# In the place of the end tag of a value: a misspelled one, a line break, or nothing.
_MISSING: Final = r"(?:{}|\n[ \t]*+(?!\s)|(?!\s))"
_END_TAG: Final = regex.compile(r"</([^<>]{3})")


class TagForm(NamedTuple):
    """How a family writes a block of calls. All but `start` and `end` are patterns.

    A block stands between `start` and `end`; "": it ends with its last call. A call begins with
    `call`, which has the group "name", and ends with `call_end`; "": it ends with its block. An
    argument begins with `value`, which has the group "key", perhaps "type", and ends with
    `value_end`; without a key its value is an object of all arguments. `lines`: a line break on
    each side of a value belongs to its tags. `cdata`: a value may be CDATA, as in XML.
    """

    start: str
    end: str
    call: str
    call_end: str
    value: str
    value_end: str
    lines: bool = False
    cdata: bool = False


# Finds where the value may end that begins at a character of a text, the best first.
_FindEnds = Callable[[str, int], Iterator["regex.Match[str]"]]
# Whether a tool may have an argument.
_Has = Callable[[str, str], bool]


class _Tags:
    """The compiled patterns of a form."""

    def __init__(self, form: TagForm) -> None:
        end, start = regex.escape(form.end), regex.escape(form.start)
        calls = f"{form.call}|" if form.call_end else ""
        # Nothing follows the last block but another one. Models leave out its end.
        following = rf"{end}\s*{start}\s*{form.call}" if form.end else form.call
        self.following = regex.compile(rf"{start}\s*{form.call}" if form.end else form.call)
        last = rf"(?:(?:{end}\s*)?\Z|{following})"
        goes_on = rf"(?=\s*(?:{form.value}|{form.call_end}\s*(?:{calls}{{}})))"
        self.call = regex.compile(form.call)
        self.value = regex.compile(form.value)
        self.call_end = regex.compile(form.call_end)
        self.over = regex.compile(rf"{form.call_end}\s*{end}\Z")
        self._tag = regex.compile(rf"(?P<open>{form.value})|{form.value_end}")
        self._before_last = regex.compile(form.value_end + goes_on.format(last))
        self._before_any = regex.compile(form.value_end + goes_on.format(end))
        misspelled = _END_TAG.match(form.value_end)
        name = form.value_end
        if misspelled:
            name = rf"</{misspelled[1]}[^<>\s]{{0,40}}>?|<{misspelled[1]}[^<>\s=]{{0,40}}>"
        missing = _MISSING.format(name)
        self._missing_last = regex.compile(missing + goes_on.format(last))
        self._missing_any = regex.compile(missing + goes_on.format(end))
        self.cdata = regex.compile(_CDATA + form.value_end, regex.DOTALL) if form.cdata else None

    @property
    def ways(self) -> Iterator[tuple[_FindEnds, bool]]:
        """The ways to read a block, the best first, and whether they hold for known arguments
        alone. In the first all tags are closed, also those within values, and the block is the last
        one; only this way shows while an answer goes on that the block has ended. Then end tags may
        be missing, then values may quote tags that aren't closed, and at last anything may follow
        the block.
        """

        def closed(text: str, begin: int) -> Iterator[regex.Match[str]]:
            return self._balanced(self._before_last, text, begin)

        yield closed, True
        yield closed, False
        yield self._missing_last.finditer, True
        yield self._before_last.finditer, False
        yield (lambda text, begin: self._balanced(self._before_any, text, begin)), False
        yield self._missing_any.finditer, True
        yield self._before_any.finditer, False

    def _balanced(
        self, end: regex.Pattern[str], text: str, begin: int
    ) -> Iterator[regex.Match[str]]:
        depth = 0
        for tag in self._tag.finditer(text, begin):
            if tag["open"] is not None:
                depth += 1
            elif depth:
                depth -= 1
            elif match := end.match(text, tag.start()):
                yield match


_tags: Final = cache(_Tags)


class _Argument(NamedTuple):
    """An argument as it is written. `key` None: `text` is an object of all arguments."""

    key: str | None
    type: str | None
    text: str


class _BlockReading(NamedTuple):
    """The calls of a block that ends before character `end`."""

    calls: list[tuple[str, list[_Argument]]]
    end: int


def _read(
    text: str, form: TagForm, find_ends: _FindEnds, has: _Has, *, complete: bool
) -> _BlockReading | None:
    """Read the text after the first tag of a block. `complete`: no more text follows, so the last
    tag may be missing. None: the text is no block of calls.
    """
    tags, calls = _tags(form), list[tuple[str, list[_Argument]]]()
    place = 0
    while head := tags.call.match(text, _solid(text, place)):
        arguments, place = list[_Argument](), _solid(text, head.end())
        calls.append((name := head["name"], arguments))
        while tag := tags.value.match(text, place):
            groups = tag.groupdict()
            given = [argument.key for argument in arguments] + [groups["key"]]
            if tags.cdata is not None and (end := tags.cdata.match(text, tag.end())):
                value = end["text"]
            elif tags.cdata is not None and not complete and _CDATA_BEGIN.match(text, tag.end()):
                return None
            else:
                # The tag behind the end is quoted if it is none of a further argument.
                end = next(
                    (
                        end
                        for end in find_ends(text, tag.end())
                        if (key := end["key"]) is None or (key not in given and has(name, key))
                    ),
                    None,
                )
                if end is None or not (groups["key"] is None or has(name, groups["key"])):
                    return None
                value = _value(text[tag.end() : end.start()], form)
            arguments.append(_Argument(groups["key"], groups.get("type"), value))
            place = _solid(text, end.end())
        if text.startswith("{", place) and not arguments:
            try:
                _, end_of_object = _OBJECT.raw_decode(text, place)
            except (ValueError, RecursionError):
                return None
            arguments.append(_Argument(None, None, text[place:end_of_object]))
            place = _solid(text, end_of_object)
        closed = tags.call_end.match(text, place)
        if closed is None:
            return None
        place = closed.end()
        if not form.call_end:
            break
    solid = _solid(text, place)
    if not calls or (solid == len(text) and form.end and not complete):
        return None
    if not form.end or (solid == len(text) and form.call_end):
        return _BlockReading(calls, place)
    return _BlockReading(calls, solid + len(form.end)) if text.startswith(form.end, solid) else None


def _solid(text: str, place: int) -> int:
    """The place of the first character from `at` on that is no white space."""
    space = _SPACE.match(text, place)
    return place if space is None else space.end()


def _value(text: str, form: TagForm) -> str:
    return text.removeprefix("\n").removesuffix("\n") if form.lines else text


class TaggedCalls:
    """Reads a block of calls in tags. Only the text after a block shows that the block is over: its
    end may be a part of a value.
    """

    def __init__(self, assembly: Assembly, form: TagForm, schemas: Schemas, *, known: bool) -> None:
        """`known`: only calls of known tools are calls."""
        self._assembly = assembly
        self._form = form
        self._tags = _tags(form)
        self._schemas = schemas
        self._known = known
        self._text = "" if form.end else form.start
        self._begun = False
        self._reading: _BlockReading | None = None
        self._readings = 0
        self._last = form.end[-1:] or ">"

    @property
    def ended(self) -> bool:
        return self._reading is not None

    def read(self, character: str) -> str | None:
        # With one reference to it the text grows in its place.
        text, self._text = self._text, ""
        text += character
        self._text = text
        if not self._begun:
            head = self._tags.call.match(self._text.lstrip(), partial=True)
            if head is None or len(self._text) > _MOST_HEAD_CHARACTERS:
                raise BrokenCallError
            self._begun = not head.partial
        if (
            character == self._last
            and self._readings < _MOST_READINGS
            and self._tags.over.search(self._text, max(0, len(self._text) - 128))
        ):
            self._readings += 1
            way, known = next(self._tags.ways)
            reading = _read(self._text, self._form, way, self._has(known), complete=False)
            self._reading = reading or self._reading
        if self._reading is not None:
            begin = _solid(self._text, self._reading.end)
            if len(self._text) - self._reading.end > _MOST_REST_CHARACTERS:
                return self._give(self._reading)
            if self._text.startswith(self._form.start, begin):
                following = self._tags.following.match(self._text, begin, partial=True)
                if following is None:
                    # What follows is quoted, as the end was.
                    self._reading = None
                elif not following.partial:
                    return self._give(self._reading)
            elif self._tags.following.search(self._text[begin:][-_MOST_HEAD_CHARACTERS:]):
                return self._give(self._reading)
        if len(self._text) > _MOST_CHARACTERS:
            raise BrokenCallError
        return None

    def close(self, *, complete: bool) -> str:
        for way, known in self._tags.ways if complete else ():
            reading = _read(self._text, self._form, way, self._has(known), complete=True)
            # What was read by the best way before is better than what any other way reads.
            if reading := reading or self._reading:
                return self._give(reading)
        if self._reading is None:
            raise BrokenCallError
        return self._give(self._reading)

    def _has(self, known: bool) -> _Has:
        return lambda tool, key: not known or self._schemas.has_argument(tool, key)

    def _give(self, reading: _BlockReading) -> str:
        calls = [(name, self._object(name, arguments)) for name, arguments in reading.calls]
        give_calls(self._assembly, calls, self._schemas if self._known else None)
        return self._text[reading.end :]

    def _object(self, tool: str, arguments: list[_Argument]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, type_, text in arguments:
            if key is not None and type_ is None:
                members[key] = self._schemas.value(tool, key, text)
            elif key is not None:
                is_text = type_ in ("string", "true")
                members[key] = text if is_text else self._schemas.typed_value(tool, key, text)
            elif isinstance(whole := as_json(text), dict):
                members |= whole
            else:
                raise BrokenCallError
        return members


_NAME: Final = r"(?P<name>[\w.:/-]+)"
_QUOTED: Final = r"[\"']?(?P<{}>[^\"'<>]+?)[\"']?"


def _functions(start: str, end: str, call_end: str = "</function>") -> TagForm:
    return TagForm(
        start,
        end,
        r"<function=[\"']?(?P<name>[^\s<>\"']+)[\"']?>",
        call_end,
        r"<parameter=[\"']?(?P<key>[^\s<>\"']+)[\"']?>",
        "</parameter>",
        lines=True,
    )


def _pairs(prefix: str) -> TagForm:
    value = (
        rf"<{prefix}arg_key>\s*(?P<key>[^<>]+?)\s*</{prefix}arg_key>"
        rf"(?:\\n|\s)*<{prefix}arg_value>"
    )
    start, end = f"<{prefix}tool_call>", f"</{prefix}tool_call>"
    return TagForm(start, end, _NAME, "", value, f"</{prefix}arg_value>")


def _invocations(start: str, end: str, mark: str, type_: str = "") -> TagForm:
    name, key = _QUOTED.format("name"), _QUOTED.format("key")
    return TagForm(
        start,
        end,
        rf"<{mark}invoke\s(?:[^<>]*?\s)?name={name}>",
        f"</{mark}invoke>",
        rf"<{mark}parameter\s(?:[^<>]*?\s)?name={key}{type_}\s*>",
        f"</{mark}parameter>",
    )


_DSML: Final = "｜DSML｜"
_DSML_TYPE: Final = r"(?:\s+string=\"(?P<type>true|false)\")?"


def _dsml(name: str) -> TagForm:
    start, end = (f"<{_DSML}{name}>", f"</{_DSML}{name}>") if name else (f"<{_DSML}invoke", "")
    return _invocations(start, end, _DSML, _DSML_TYPE)


_XTML: Final = r"(?:(?!<\|sep\|>).)*"

FUNCTIONS: Final = _functions("<tool_call>", "</tool_call>")
# Models leave out the first tag of a block alone.
BARE_FUNCTIONS: Final = _functions(
    "<function=", "", r"</function>(?:\s*</tool_call>(?:\s*<tool_call>(?=\s*<function=))?)?"
)
SEED: Final = _functions("<seed:tool_call>", "</seed:tool_call>")
DSML: Final = tuple(_dsml(name) for name in ("function_calls", "tool_calls", ""))
# The forms of families for which mlx-lm has parsers, by their names there.
OF_MLX_LM: Final = {
    "glm47": _pairs(""),
    "laguna": _pairs(""),
    "longcat": _pairs("longcat_"),
    "minimax_m2": _invocations("<minimax:tool_call>", "</minimax:tool_call>", ""),
    "muse_spark": _invocations("<atem:function_calls>", "</atem:function_calls>", "atem:"),
    "qwen3_coder": FUNCTIONS,
    "kimi_k3": TagForm(
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
        rf"<\|open\|>call\s(?:{_XTML}?\s)?tool=\"(?P<name>[^\"]+)\"{_XTML}<\|sep\|>",
        r"<\|close\|>call<\|sep\|>",
        rf"<\|open\|>(?:json{_XTML}|argument\s(?:{_XTML}?\s)?key=\"(?P<key>[^\"]+)\""
        rf"(?:{_XTML}?\stype=\"(?P<type>\w+)\")?{_XTML})<\|sep\|>",
        r"<\|close\|>(?:argument|json)<\|sep\|>",
    ),
    "minicpm5": TagForm(
        "<function name=",
        "",
        rf"<function\s+name\s*=\s*{_QUOTED.format('name')}\s*>",
        "</function>",
        rf"<param\s+name\s*=\s*{_QUOTED.format('key')}\s*>",
        "</param>",
        cdata=True,
    ),
}
