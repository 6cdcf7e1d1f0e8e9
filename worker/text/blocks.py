"""Makes blocks of calls of every kind, and the blocks of families for which mlx-lm has parsers."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import regex

from worker.calls.forms import BARE_FUNCTIONS, OF_MLX_LM
from worker.calls.parsers import gemma_calls, json_objects, python_calls, python_objects
from worker.calls.readers import EitherCalls, HeadedCalls, Parse, WholeCalls
from worker.calls.tagged import Form, TaggedCalls
from worker.mlx_lm.text import parser_name
from worker.text.format import Bare, CallBlock, MakeReader

_MISTRAL_NAME: Final = r"(?P<name>[\w.:/-]+)\s*"
_MISTRAL_HEAD: Final = (
    rf"\s*(?:\[TOOL_CALLS\])?\s*{_MISTRAL_NAME}(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*\{{"
)
# Models leave out the tags of a section, and the tag of its first call.
_KIMI_HEAD: Final = (
    r"\s*(?:<\|tool_call_end\|>\s*)?(?:<\|tool_call_begin\|>\s*)?(?:functions\.)?"
    r"(?P<name>[\w.:/-]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*\{"
)
_KIMI_TAIL: Final = r"\s*(?:<\|tool_call_end\|>)?\s*<\|tool_calls?_section_end\|>"
_KIMI_END: Final = r"\s*<\|tool_call_end\|>"
_KIMI_SECTION_ENDS: Final = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
_STRING: Final = r"\"(?:[^\"\\]|\\.)*\""
_PAIR: Final = rf"{_STRING}\s*:\s*(?:{_STRING}|[\w.+-]+)"
_STRICT_PAIR: Final = rf"\"(?:type|id)\"\s*:\s*(?:{_STRING}|[\w.+-]+)"


def _object_head(pair: str) -> regex.Pattern[str]:
    return regex.compile(
        rf"[\s\[\],;}}]*\{{\s*(?:{pair}\s*,\s*)*?\"(?:name|tool_name|function)\"\s*:\s*"
        rf"\"(?P<name>[^\"\\]+)\"\s*,\s*(?:{pair}\s*,\s*)*?"
        r"\"(?:arguments|parameters|args)\"\s*:\s*\{"
    )


_HEAD: Final = _object_head(_PAIR)
_STRICT_HEAD: Final = _object_head(_STRICT_PAIR)
_CLOSING: Final = regex.compile(rf"\s*(?:,\s*{_PAIR}\s*)*\}}[\s\],;}}]*")
_OBJECT: Final = regex.compile(r"[\s\[\],;}]*\{")
_STRICT_OBJECT: Final = regex.compile(
    r"[\s\[\],;}]*\{\s*\"(?:type|id|function|arguments|parameters|args)\""
)
_GEMMA: Final = r"\s*call:"
_PYTHON_OBJECT: Final = r"\s*\[?\s*\{\s*'"
_NAMED_OBJECT: Final = (
    r"\{\s*\"name\"\s*:\s*\"[\w.:/-]+\"\s*,\s*\"(?:arguments|parameters)\"\s*:\s*\{"
)


def either(*choices: tuple[str, MakeReader]) -> MakeReader:
    """Calls of several kinds: the first pattern that the block's beginning matches tells which."""
    compiled = [(regex.compile(begins), make) for begins, make in choices]
    return lambda assembly, schemas: EitherCalls(
        [(begins, make(assembly, schemas)) for begins, make in compiled]
    )


def object_calls(end: str = "", *, strict: bool = False) -> MakeReader:
    """Calls in JSON. Those with the name before the arguments are given as they come, all others at
    the block's end.
    """
    tail = regex.compile(rf"\s*(?:,\s*{_PAIR}\s*)*\}}[\s\],;}}]*{regex.escape(end)}")
    head, begins = (_STRICT_HEAD, _STRICT_OBJECT) if strict else (_HEAD, _OBJECT)
    parse = partial(json_objects, strict=strict)
    return lambda assembly, schemas: HeadedCalls(
        assembly, end, head, tail, _CLOSING, lambda: WholeCalls(assembly, end, parse, begins)
    )


def headed_calls(end: str, head: str, tail: str = r"\s*") -> MakeReader:
    patterns = regex.compile(head), regex.compile(tail)
    return lambda assembly, schemas: HeadedCalls(assembly, end, *patterns)


def whole_calls(end: str, parse: Parse, begins: str, *, known: bool = False) -> MakeReader:
    """Calls that are parsed at the block's end. With `known` they are calls of known tools, and
    their block has its end.
    """
    pattern = regex.compile(begins)
    return lambda assembly, schemas: WholeCalls(
        assembly, end, parse, pattern, schemas if known else None
    )


def tagged_calls(form: Form, *, known: bool = False) -> MakeReader:
    return lambda assembly, schemas: TaggedCalls(assembly, form, schemas, known=known)


def objects(start: str, end: str = "") -> CallBlock:
    """Calls that are objects in JSON. Some models write dictionaries in Python."""
    in_python = whole_calls(end, python_objects, _PYTHON_OBJECT, known=True)
    return CallBlock(start, either((_PYTHON_OBJECT, in_python), ("", object_calls(end))))


def objects_or_headed(start: str, end: str, head: str, tail: str = r"\s*") -> CallBlock:
    headed = headed_calls(end, head, tail)
    return CallBlock(start, either((r"\s*[\[{]", object_calls(end)), (r"\s*\S", headed)))


def bare(begins: str, make: MakeReader) -> Bare:
    return Bare(regex.compile(begins), make)


BARE_FUNCTION_CALLS: Final = CallBlock(
    BARE_FUNCTIONS.start, tagged_calls(BARE_FUNCTIONS, known=True), loose=True
)
# Models leave out the first tag.
CLOSED_OBJECTS: Final = bare(
    _NAMED_OBJECT, whole_calls("</tool_call>", json_objects, _NAMED_OBJECT, known=True)
)


def calls_of_mlx_lm(
    tokenizer: Any,
) -> tuple[str, tuple[CallBlock, ...], tuple[Bare, ...], tuple[str, ...]]:
    """The name of a family for which mlx-lm has chosen a parser, its blocks, its calls without a
    tag, and its tags that mean nothing.
    """
    family = parser_name(tokenizer)
    start, end = tokenizer.tool_call_start, tokenizer.tool_call_end
    match family:
        case "json_tools":
            return "hermes", (objects(start, end),), (CLOSED_OBJECTS,), ()
        case "mistral":
            # Tokenizers up to version 7 write a list of objects, later ones names and arguments.
            alone = bare(rf"{_MISTRAL_NAME}\[ARGS\]\s*\{{", headed_calls("", _MISTRAL_HEAD))
            return family, (objects_or_headed(start, end, _MISTRAL_HEAD),), (alone,), ()
        case "kimi_k2":
            sections = (start, start.replace("calls", "call"))
            section = headed_calls(end, _KIMI_HEAD, _KIMI_TAIL)
            call = headed_calls("<|tool_call_end|>", _KIMI_HEAD, _KIMI_END)
            blocks = [CallBlock(tag, section) for tag in sections]
            blocks.append(CallBlock("<|tool_call_begin|>", call))
            return family, tuple(blocks), (), _KIMI_SECTION_ENDS
        case "gemma4" | "function_gemma":
            parse = gemma_calls('<|"|>' if family == "gemma4" else "<escape>")
            return family, (CallBlock(start, whole_calls(end, parse, _GEMMA)),), (), ()
        case "pythonic":
            return family, (CallBlock(start, whole_calls(end, python_calls, r"\s*\[")),), (), ()
    form = OF_MLX_LM[family]
    block = CallBlock(form.start, tagged_calls(form))
    loose = (BARE_FUNCTION_CALLS,) if family == "qwen3_coder" else ()
    return family, (block, *loose), (), ()
