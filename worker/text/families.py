"""Finds the format of a model's answers by its chat template and its vocabulary, as mlx-lm chooses
parsers.

mlx-lm's choice has precedence. This file makes the blocks of calls of every kind, those of the
families for which mlx-lm has parsers, and the families for which it has none.
"""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from typing import Any, Final, NamedTuple

import regex

from worker.calls.parsers import (
    gemma_calls,
    json_objects,
    python_calls,
    python_lines,
    python_methods,
    python_objects,
)
from worker.calls.readers import EitherCalls, HeadedCalls, Parse, WholeCalls
from worker.calls.tagged import BARE_FUNCTIONS, DSML, OF_MLX_LM, SEED, TagForm, TaggedCalls
from worker.mlx_lm.text import parser_name
from worker.text.format import AnswerFormat, BareCalls, CallBlock, MakeReader, Tags

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


def tagged_calls(form: TagForm, *, known: bool = False) -> MakeReader:
    return lambda assembly, schemas: TaggedCalls(assembly, form, schemas, known=known)


def objects(start: str, end: str = "") -> CallBlock:
    """Calls that are objects in JSON. Some models write dictionaries in Python."""
    in_python = whole_calls(end, python_objects, _PYTHON_OBJECT, known=True)
    return CallBlock(start, either((_PYTHON_OBJECT, in_python), ("", object_calls(end))))


def objects_or_headed(start: str, end: str, head: str, tail: str = r"\s*") -> CallBlock:
    headed = headed_calls(end, head, tail)
    return CallBlock(start, either((r"\s*[\[{]", object_calls(end)), (r"\s*\S", headed)))


def bare(begins: str, make: MakeReader) -> BareCalls:
    return BareCalls(regex.compile(begins), make)


BARE_FUNCTION_CALLS: Final = CallBlock(
    BARE_FUNCTIONS.start, tagged_calls(BARE_FUNCTIONS, known=True), loose=True
)
# Models leave out the first tag.
CLOSED_OBJECTS: Final = bare(
    _NAMED_OBJECT, whole_calls("</tool_call>", json_objects, _NAMED_OBJECT, known=True)
)


def calls_of_mlx_lm(
    tokenizer: Any,
) -> tuple[str, tuple[CallBlock, ...], tuple[BareCalls, ...], tuple[str, ...]]:
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


# DeepSeek V3 and R1 write "function" first, and the arguments in a fence; V3.1 does neither.
_DEEPSEEK_HEAD: Final = (
    r"\s*(?:```)?\s*(?:<｜tool▁call▁end｜>)?\s*<｜tool▁call▁begin｜>\s*"
    r"(?:function\s*<｜tool▁sep｜>)?(?P<name>[\w.:/-]+)\s*(?:<｜tool▁sep｜>)?\s*(?:```json)?\s*\{"
)
_DEEPSEEK_TAIL: Final = r"\s*(?:```)?\s*(?:<｜tool▁call▁end｜>)?\s*<｜tool▁calls▁end｜>"
_HUNYUAN_HEAD: Final = (
    r"\s*(?:```)?\s*(?:</tool_call>)?\s*<tool_call>\s*(?P<name>[\w.:/-]+)\s*(?:```json)?\s*\{"
)
_HUNYUAN_TAIL: Final = r"\s*(?:```)?\s*(?:</tool_call>)?\s*</tool_calls>"
_LLAMA4_BEGINS: Final = r"\[\s*[\w.]+\("
_LLAMA3_METHOD: Final = r"\s*[\w-]+\.call\("
_LLAMA3_METHODS: Final = whole_calls("", python_methods, _LLAMA3_METHOD, known=True)
# Tags of reasoning that mlx-lm doesn't know. The last pair is for templates that write these tags
# in ordinary tokens.
THOUGHTS: Final = (
    Tags("<seed:think>", "</seed:think>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    Tags("<|inner_prefix|>", "<|inner_suffix|>"),
    Tags("◁think▷", "◁/think▷"),
    Tags("<thought>", "</thought>"),
    Tags("<think>", "</think>"),
)


def find_format(tokenizer: Any) -> AnswerFormat:
    """The format of a model's answers. `tokenizer` is mlx-lm's wrapper, which may have chosen a
    parser.
    """
    template, vocabulary = template_text(tokenizer), tokenizer.get_vocab()
    if all(name in vocabulary for name in ("<|start|>", "<|channel|>", "<|message|>")):
        return AnswerFormat("harmony", harmony=True)
    family = _family(template, vocabulary)
    name, blocks, bare = family.name, family.blocks, family.bare
    dropped = [tag for tag in family.around if tag in template or tag in vocabulary]
    if tokenizer.has_tool_calling and not (family.before_mlx_lm and family.mark in template):
        name, blocks, bare, ends = calls_of_mlx_lm(tokenizer)
        dropped += ends
    return AnswerFormat(
        name,
        _reasoning(tokenizer, template, vocabulary),
        blocks,
        bare,
        (*dropped, *tokenizer.structural_markers),
        tuple((state, tuple(edges)) for state, edges in tokenizer.response_transitions.items()),
        tokenizer.response_initial_state or "normal",
    )


def template_text(tokenizer: Any) -> str:
    """The sources of all chat templates that a tokenizer has."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        return "\n".join(str(item) for item in template.values())
    return template if isinstance(template, str) else ""


class ModelFamily(NamedTuple):
    """Models whose template, or vocabulary, has the `mark`. `before_mlx_lm`: the family goes before
    mlx-lm's choice, which takes its template for another family's. `around` are tags around text.
    """

    name: str
    mark: str
    blocks: tuple[CallBlock, ...]
    bare: tuple[BareCalls, ...] = ()
    before_mlx_lm: bool = False
    around: tuple[str, ...] = ()


HERMES: Final = ModelFamily(
    "hermes", "<tool_call>", (objects("<tool_call>", "</tool_call>"),), (CLOSED_OBJECTS,)
)


# The order counts: the template of an earlier family may have the mark of a later one.
FAMILIES: Final = (
    ModelFamily(
        "deepseek_v32",
        "｜DSML｜",
        tuple(
            CallBlock(form.start, tagged_calls(form, known=not form.end), loose=not form.end)
            for form in DSML
        ),
    ),
    ModelFamily(
        "deepseek",
        "<｜tool▁calls▁begin｜>",
        (
            CallBlock(
                "<｜tool▁calls▁begin｜>",
                headed_calls("<｜tool▁calls▁end｜>", _DEEPSEEK_HEAD, _DEEPSEEK_TAIL),
            ),
        ),
    ),
    ModelFamily(
        "seed_oss",
        "<seed:tool_call>",
        (CallBlock(SEED.start, tagged_calls(SEED)),),
    ),
    ModelFamily(
        "command",
        "<|START_ACTION|>",
        (objects("<|START_ACTION|>", "<|END_ACTION|>"),),
        around=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    ModelFamily(
        "phi4",
        "<|/tool_call|>",
        (objects("<|tool_call|>", "<|/tool_call|>"), objects("functools")),
    ),
    ModelFamily("granite", "<|tool_call|>", (objects("<|tool_call|>"),)),
    ModelFamily("nemotron", "<TOOLCALL>", (objects("<TOOLCALL>", "</TOOLCALL>"),)),
    ModelFamily(
        "internlm", "<|action_start|>", (objects("<|action_start|><|plugin|>", "<|action_end|>"),)
    ),
    ModelFamily(
        "hunyuan",
        "<tool_calls>",
        (objects_or_headed("<tool_calls>", "</tool_calls>", _HUNYUAN_HEAD, _HUNYUAN_TAIL),),
        before_mlx_lm=True,
        around=("<answer>", "</answer>"),
    ),
    ModelFamily(
        "olmo3",
        "<function_calls>",
        (
            CallBlock(
                "<function_calls>",
                whole_calls("</function_calls>", python_lines, r"\s*[\w.]+\("),
            ),
        ),
    ),
    HERMES,
    ModelFamily(
        "llama4",
        "<|python_start|>",
        (CallBlock("<|python_start|>", whole_calls("<|python_end|>", python_calls, r"\s*\[")),),
        (bare(_LLAMA4_BEGINS, whole_calls("", python_calls, _LLAMA4_BEGINS)),),
    ),
    ModelFamily(
        "llama3",
        "<|python_tag|>",
        (
            CallBlock(
                "<|python_tag|>",
                either((_LLAMA3_METHOD, _LLAMA3_METHODS), ("", object_calls(strict=True))),
            ),
            BARE_FUNCTION_CALLS,
        ),
        (bare(r"\{", object_calls(strict=True)), bare(_LLAMA3_METHOD, _LLAMA3_METHODS)),
    ),
)


def _family(template: str, vocabulary: Container[str]) -> ModelFamily:
    # The template comes first, since many models have the vocabulary of another model.
    for marks in (template, vocabulary):
        for family in FAMILIES:
            if family.mark in marks:
                return family
    # The most common family, for models whose template has no tools.
    return HERMES


def _reasoning(tokenizer: Any, template: str, vocabulary: Container[str]) -> Tags | None:
    if tokenizer.has_thinking:
        return Tags(tokenizer.think_start, tokenizer.think_end)
    for marks in (vocabulary, template):
        for tags in THOUGHTS:
            if tags.start in marks and tags.end in marks:
                return tags
    return None
