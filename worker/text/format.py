"""The format of a model's answers: its tags of reasoning and calls, the forms of calls for which
mlx-lm has parsers, and the state in which an answer begins.

Gemma's calls are parsed here: `call:NAME{KEY:VALUE,...}`, where strings stand between two equal
tags. mlx-lm's parsers take minutes for some texts of that form, and one of them reads no nested
objects.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import regex

from worker.mlx_lm.text import Parse, parse_python, parser_name
from worker.text.assembly import Assembly
from worker.text.readers import EitherCalls, HeadedCalls, ObjectCalls, Reader, WholeCalls

# Makes a reader. The arguments are an assembly and the definitions of the tools.
MakeReader: TypeAlias = Callable[[Assembly, Any], Reader]
# How much of a prompt's end is searched if no special tokens end its messages. Templates write less
# than that after the last message.
_END_TOKENS: Final = 256
# Harmony's first token of a message.
_START: Final = "<|start|>"
_MESSAGE: Final = "<|message|>"
_HEAD: Final = re.compile(r"[\s,]*call:([\w.:/-]+)\s*(?=\{)")
_BARE: Final = re.compile(r"[^,{}\[\]<]+")
_KEY: Final = re.compile(r"\s*([^:,{}\[\]]+?)\s*:\s*")
_SPACE: Final = re.compile(r"\s*")
_MOST_DEPTH: Final = 64
_MISTRAL_HEAD: Final = (
    r"\s*(?:\[TOOL_CALLS\])?\s*(?P<name>[\w.:/-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*\{"
)
_KIMI_HEAD: Final = (
    r"\s*(?:<\|tool_call_end\|>)?\s*<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[\w.:/-]+?)"
    r"(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*\{"
)
_KIMI_TAIL: Final = r"\s*(?:<\|tool_call_end\|>)?\s*<\|tool_calls_section_end\|>"
# More tags than any call has. The time of mlx-lm's parsers grows with the square of their number.
_MOST_TAGS: Final = 500
# In characters. Longer texts must be valid Python: mlx-lm's parser takes too long for others.
_MOST_BROKEN_PYTHON: Final = 1 << 13
_NAME: Final = r"\s*[\w.:/-]+\s*(?:<|\{|$)"
_GEMMA: Final = r"\s*call:"
_FUNCTION_END: Final = regex.compile(r"</function>(?=\s*(?:<function=|$))")


class Tags(NamedTuple):
    start: str
    end: str


@dataclass(frozen=True)
class CallBlock:
    """A block of tool calls after the tag `start`. `make` makes its reader."""

    start: str
    make: MakeReader


@dataclass(frozen=True)
class Bare:
    """Tool calls without a tag. An answer that begins with the character `first` may be such calls;
    `make` makes their reader.
    """

    first: str
    make: MakeReader


@dataclass(frozen=True)
class AnswerFormat:
    """The tags of a model's answers. The tags `dropped` mean nothing to a client, and are left out.
    `turns` are mlx-lm's transitions between states, for a model whose turns have messages with
    headers. An answer begins in the state `first`.
    """

    family: str = ""
    reasoning: Tags | None = None
    blocks: tuple[CallBlock, ...] = ()
    bare: Bare | None = None
    dropped: tuple[str, ...] = ()
    turns: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    first: str = "normal"
    harmony: bool = False


def objects(start: str, end: str = "", *, strict: bool = False) -> CallBlock:
    return CallBlock(start, lambda assembly, _: ObjectCalls(assembly, end, strict=strict))


def headed(start: str, end: str, head: str, tail: str = r"\s*") -> CallBlock:
    patterns = regex.compile(head), regex.compile(tail)
    return CallBlock(start, lambda assembly, _: HeadedCalls(assembly, end, *patterns))


def either(start: str, end: str, head: str, tail: str = r"\s*") -> CallBlock:
    """A block of JSON objects, or of calls with heads: its first character tells which."""
    patterns = regex.compile(head), regex.compile(tail)
    return CallBlock(start, lambda assembly, _: EitherCalls(assembly, end, *patterns))


def whole(start: str, end: str, parse: Parse, begins: str) -> CallBlock:
    pattern = regex.compile(begins)
    return CallBlock(
        start,
        lambda assembly, definitions: WholeCalls(assembly, end, parse, definitions, pattern),
    )


def opening_state(prompt_ids: list[int], tokenizer: Any, format_: AnswerFormat) -> str:
    """The state that an answer begins in: "reasoning" if the prompt ends in open reasoning."""
    if format_.reasoning is None:
        return format_.first
    start, end = format_.reasoning
    text = _end_of(prompt_ids, tokenizer, keeping=(start, end))
    return "reasoning" if text.rfind(start) > text.rfind(end) else format_.first


def opening_header(prompt_ids: list[int], tokenizer: Any) -> str | None:
    """For harmony: the header of the prompt's last message; None if there is no message."""
    starts = tokenizer.encode(_START, add_special_tokens=False)
    size = len(starts)
    places = range(len(prompt_ids) - size, -1, -1)
    at = next((each for each in places if prompt_ids[each : each + size] == starts), None)
    if at is None:
        return None
    # An answer may go on in a message that the prompt has begun.
    header, end, _ = str(tokenizer.decode(prompt_ids[at:])).partition(_MESSAGE)
    return header + end


def _end_of(prompt_ids: list[int], tokenizer: Any, keeping: tuple[str, ...]) -> str:
    """The end of a prompt, after the last special token that is no part of a tag in `keeping`. That
    token ends a message, and tags in a message don't open reasoning.
    """
    special = set(tokenizer.all_special_ids)
    begin = len(prompt_ids)
    while begin and (
        prompt_ids[begin - 1] not in special or _is_part(prompt_ids[begin - 1], tokenizer, keeping)
    ):
        begin -= 1
    if begin <= 1:
        # No special token ends messages here.
        begin = max(begin, len(prompt_ids) - _END_TOKENS)
    return str(tokenizer.decode(prompt_ids[begin:]))


def _is_part(token_id: int, tokenizer: Any, keeping: tuple[str, ...]) -> bool:
    text = str(tokenizer.decode([token_id]))
    return any(text in each for each in keeping)


def block_of_mlx_lm(tokenizer: Any) -> tuple[str, CallBlock]:
    """The name and the block of a family for which mlx-lm has chosen a parser. Calls in JSON get
    readers of this room, since mlx-lm's parsers wait for the end of a call.
    """
    family = parser_name(tokenizer)
    start, end = tokenizer.tool_call_start, tokenizer.tool_call_end
    match family:
        case "json_tools":
            return "hermes", objects(start, end)
        case "mistral":
            # Tokenizers up to version 7 write a list of objects, later ones names and arguments.
            return family, either(start, end, _MISTRAL_HEAD)
        case "kimi_k2":
            return family, headed(start, end, _KIMI_HEAD, _KIMI_TAIL)
        case "gemma4":
            return family, whole(start, end, gemma_calls('<|"|>'), _GEMMA)
        case "function_gemma":
            return family, whole(start, end, gemma_calls("<escape>"), _GEMMA)
        case "pythonic":
            return family, whole(start, end, python_calls, r"\s*\[")
        case "qwen3_coder":
            parse = functions(tokenizer.tool_parser)
        case _:
            parse = tokenizer.tool_parser
    form = _FORMS.get(family, _ANY)
    parse = closed(parse, form.tags, alike=form.alike)
    return family, whole(start, end, parse, form.begins)


def gemma_calls(quote: str) -> Parse:
    """A parser for Gemma's calls, whose strings stand between two tags `quote`."""

    def parse(text: str, _definitions: Any) -> list[Any]:
        calls: list[Any] = []
        reader = _Text(text.strip(), quote)
        while reader.at < len(reader.text):
            match = reader.expect(_HEAD)
            calls.append({"name": match[1], "arguments": reader.value(0)})
        return calls

    return parse


class _Text:
    """Reads a text by the grammar of Gemma's calls, from the character `at` on. Methods raise
    ValueError if the text doesn't follow the grammar.
    """

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


FUNCTION_TAGS: Final = (Tags("<function=", "</function>"), Tags("<parameter=", "</parameter>"))


class _BlockForm(NamedTuple):
    """A block that mlx-lm parses. The pattern `begins` matches its beginning. The `tags` in it must
    be closed as often as they are opened: mlx-lm's parsers silently skip tags that are not
    closed. `alike`: all tags must be opened equally often.
    """

    begins: str
    tags: tuple[Tags, ...] = ()
    alike: bool = False


_GLM: Final = _BlockForm(
    _NAME,
    (Tags("<arg_key>", "</arg_key>"), Tags("<arg_value>", "</arg_value>")),
    alike=True,
)


_FORMS: Final = {
    "glm47": _GLM,
    "laguna": _GLM,
    "kimi_k3": _BlockForm(
        r"\s*<\|open\|>call",
        (
            Tags("<|open|>call ", "<|close|>call<|sep|>"),
            Tags("<|open|>argument ", "<|close|>argument<|sep|>"),
            Tags("<|open|>json", "<|close|>json<|sep|>"),
        ),
    ),
    "longcat": _BlockForm(
        _NAME,
        (
            Tags("<longcat_arg_key>", "</longcat_arg_key>"),
            Tags("<longcat_arg_value>", "</longcat_arg_value>"),
        ),
        alike=True,
    ),
    "minicpm5": _BlockForm(r"\s*[\"']?[\w.-]+", (Tags("<param ", "</param>"),)),
    "minimax_m2": _BlockForm(
        r"\s*<invoke name=", (Tags("<invoke ", "</invoke>"), Tags("<parameter ", "</parameter>"))
    ),
    "muse_spark": _BlockForm(
        r"\s*<atem:invoke",
        (
            Tags("<atem:invoke", "</atem:invoke>"),
            Tags("<atem:parameter", "</atem:parameter>"),
        ),
    ),
    "qwen3_coder": _BlockForm(r"\s*<function=", FUNCTION_TAGS),
}


_ANY: Final = _BlockForm("")


def closed(parse: Parse, tags: tuple[Tags, ...], *, alike: bool = False) -> Parse:
    def parse_closed(text: str, definitions: Any) -> Any:
        counts = [text.count(start) for start, _ in tags]
        if counts != [text.count(end) for _, end in tags]:
            raise ValueError("Tags that aren't closed.")
        if max(counts, default=0) > _MOST_TAGS or (alike and len(set(counts)) > 1):
            raise ValueError("Tags without order.")
        return parse(text.strip(), definitions)

    return parse_closed


def python_calls(text: str, definitions: Any) -> Any:
    if len(text) > _MOST_BROKEN_PYTHON:
        ast.parse(text.strip(), mode="eval")
    return parse_python(text, definitions)


def functions(parse: Parse) -> Parse:
    """A parser that gives each function of a block to `parse` alone: mlx-lm's parser takes several
    functions for one.
    """

    def parse_each(text: str, definitions: Any) -> list[Any]:
        ends = [each.end() for each in _FUNCTION_END.finditer(text)]
        return [
            parse(text[begin:end].strip(), definitions)
            for begin, end in zip([0, *ends], ends, strict=False)
        ]

    return parse_each
