"""Finds the format of a model's answers by its chat template and its vocabulary, as mlx-lm chooses
parsers.

mlx-lm's choice has precedence. This file has the families for which mlx-lm has no parser.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from typing import Any, Final, NamedTuple

import regex

from worker.mlx_lm.text import parse_functions
from worker.text.format import (
    FUNCTION_TAGS,
    AnswerFormat,
    Bare,
    CallBlock,
    Tags,
    block_of_mlx_lm,
    closed,
    either,
    functions,
    headed,
    objects,
    python_calls,
    whole,
)
from worker.text.readers import ObjectCalls, WholeCalls

# DeepSeek V3 and R1 write "function" first, and the arguments in a fence; V3.1 does neither.
_DEEPSEEK_HEAD: Final = (
    r"\s*(?:```)?\s*(?:<｜tool▁call▁end｜>)?\s*<｜tool▁call▁begin｜>\s*"
    r"(?:function\s*<｜tool▁sep｜>)?(?P<name>[\w.:/-]+)\s*(?:<｜tool▁sep｜>)?\s*(?:```json)?\s*\{"
)
_DEEPSEEK_TAIL: Final = r"\s*(?:```)?\s*(?:<｜tool▁call▁end｜>)?\s*<｜tool▁calls▁end｜>"
_INVOKE: Final = regex.compile(
    r"\s*<｜DSML｜invoke name=\"([^\"]+)\">(.*?)</｜DSML｜invoke>\s*", regex.DOTALL
)
_PARAMETER: Final = regex.compile(
    r"\s*<｜DSML｜parameter name=\"([^\"]+)\"(?: string=\"(true|false)\")?>"
    r"(.*?)</｜DSML｜parameter>\s*",
    regex.DOTALL,
)
_HUNYUAN_HEAD: Final = (
    r"\s*(?:```)?\s*(?:</tool_call>)?\s*<tool_call>\s*(?P<name>[\w.:/-]+)\s*(?:```json)?\s*\{"
)
_HUNYUAN_TAIL: Final = r"\s*(?:```)?\s*(?:</tool_call>)?\s*</tool_calls>"
_LLAMA4_BEGINS: Final = regex.compile(r"\[\s*[\w.]+\(")
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
    if all(each in vocabulary for each in ("<|start|>", "<|channel|>", "<|message|>")):
        return AnswerFormat("harmony", harmony=True)
    family = _family(template, vocabulary)
    name, blocks, bare = family.name, family.blocks, family.bare
    if tokenizer.has_tool_calling and not (family.before_mlx_lm and family.mark in template):
        name, block = block_of_mlx_lm(tokenizer)
        blocks, bare = (block,), None
    dropped = [each for each in family.around if each in template or each in vocabulary]
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
        return "\n".join(str(each) for each in template.values())
    return template if isinstance(template, str) else ""


class Family(NamedTuple):
    """Models whose template, or vocabulary, has the `mark`. `before_mlx_lm`: the family goes before
    mlx-lm's choice, which takes its template for another family's. `around` are tags around text.
    """

    name: str
    mark: str
    blocks: tuple[CallBlock, ...]
    bare: Bare | None = None
    before_mlx_lm: bool = False
    around: tuple[str, ...] = ()


def _python_lines(text: str, definitions: Any) -> Any:
    """Parse calls in Python, one a line."""
    return python_calls(f"[{', '.join(text.strip().splitlines())}]", definitions)


def _dsml(text: str, _definitions: Any) -> list[Any]:
    """Parse calls in DeepSeek V3.2's markup, which mlx-lm writes into prompts and can't read."""
    calls = []
    for name, body in _matches(_INVOKE, text):
        arguments = {
            key: json.loads(value) if string == "false" else value
            for key, string, value in _matches(_PARAMETER, body)
        }
        calls.append({"name": name, "arguments": arguments})
    return calls


def _matches(pattern: regex.Pattern[str], text: str) -> Iterator[tuple[str, ...]]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = pattern.match(text, at)
        if match is None:
            raise ValueError(f"Unreadable from character {at} on.")
        yield match.groups()
        at = match.end()


HERMES: Final = Family("hermes", "<tool_call>", (objects("<tool_call>", "</tool_call>"),))


# The order counts: the template of an earlier family may have the mark of a later one.
FAMILIES: Final = (
    Family(
        "deepseek_v32",
        "｜DSML｜",
        (
            whole(
                "<｜DSML｜function_calls>",
                "</｜DSML｜function_calls>",
                _dsml,
                r"\s*<｜DSML｜invoke",
            ),
        ),
    ),
    Family(
        "deepseek",
        "<｜tool▁calls▁begin｜>",
        (headed("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _DEEPSEEK_HEAD, _DEEPSEEK_TAIL),),
    ),
    Family(
        "seed_oss",
        "<seed:tool_call>",
        (
            whole(
                "<seed:tool_call>",
                "</seed:tool_call>",
                closed(functions(parse_functions), FUNCTION_TAGS),
                r"\s*<function=",
            ),
        ),
    ),
    Family(
        "command",
        "<|START_ACTION|>",
        (objects("<|START_ACTION|>", "<|END_ACTION|>"),),
        around=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    Family(
        "phi4",
        "<|/tool_call|>",
        (objects("<|tool_call|>", "<|/tool_call|>"), objects("functools")),
    ),
    Family("granite", "<|tool_call|>", (objects("<|tool_call|>"),)),
    Family("nemotron", "<TOOLCALL>", (objects("<TOOLCALL>", "</TOOLCALL>"),)),
    Family(
        "internlm", "<|action_start|>", (objects("<|action_start|><|plugin|>", "<|action_end|>"),)
    ),
    Family(
        "hunyuan",
        "<tool_calls>",
        (either("<tool_calls>", "</tool_calls>", _HUNYUAN_HEAD, _HUNYUAN_TAIL),),
        before_mlx_lm=True,
        around=("<answer>", "</answer>"),
    ),
    Family(
        "olmo3",
        "<function_calls>",
        (whole("<function_calls>", "</function_calls>", _python_lines, r"\s*[\w.]+\("),),
    ),
    HERMES,
    Family(
        "llama4",
        "<|python_start|>",
        (whole("<|python_start|>", "<|python_end|>", python_calls, r"\s*\["),),
        Bare(
            "[",
            lambda assembly, definitions: WholeCalls(
                assembly, "", python_calls, definitions, _LLAMA4_BEGINS
            ),
        ),
    ),
    Family(
        "llama3",
        "<|python_tag|>",
        (objects("<|python_tag|>", strict=True),),
        Bare("{", lambda assembly, _: ObjectCalls(assembly, strict=True)),
    ),
)


def _family(template: str, vocabulary: Container[str]) -> Family:
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
