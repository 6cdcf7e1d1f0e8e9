"""Finds the format of a model's answers by its chat template and its vocabulary, as mlx-lm chooses
parsers.

mlx-lm's choice has precedence. This file has the families for which mlx-lm has no parser.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final, NamedTuple

from worker.calls.forms import DSML, SEED
from worker.calls.parsers import python_calls, python_lines, python_methods
from worker.text.blocks import (
    BARE_FUNCTION_CALLS,
    CLOSED_OBJECTS,
    bare,
    calls_of_mlx_lm,
    either,
    headed_calls,
    object_calls,
    objects,
    objects_or_headed,
    tagged_calls,
    whole_calls,
)
from worker.text.format import AnswerFormat, Bare, CallBlock, Tags

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
    if all(each in vocabulary for each in ("<|start|>", "<|channel|>", "<|message|>")):
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
        return "\n".join(str(each) for each in template.values())
    return template if isinstance(template, str) else ""


class Family(NamedTuple):
    """Models whose template, or vocabulary, has the `mark`. `before_mlx_lm`: the family goes before
    mlx-lm's choice, which takes its template for another family's. `around` are tags around text.
    """

    name: str
    mark: str
    blocks: tuple[CallBlock, ...]
    bare: tuple[Bare, ...] = ()
    before_mlx_lm: bool = False
    around: tuple[str, ...] = ()


HERMES: Final = Family(
    "hermes", "<tool_call>", (objects("<tool_call>", "</tool_call>"),), (CLOSED_OBJECTS,)
)


# The order counts: the template of an earlier family may have the mark of a later one.
FAMILIES: Final = (
    Family(
        "deepseek_v32",
        "｜DSML｜",
        tuple(
            CallBlock(form.start, tagged_calls(form, known=not form.end), loose=not form.end)
            for form in DSML
        ),
    ),
    Family(
        "deepseek",
        "<｜tool▁calls▁begin｜>",
        (
            CallBlock(
                "<｜tool▁calls▁begin｜>",
                headed_calls("<｜tool▁calls▁end｜>", _DEEPSEEK_HEAD, _DEEPSEEK_TAIL),
            ),
        ),
    ),
    Family(
        "seed_oss",
        "<seed:tool_call>",
        (CallBlock(SEED.start, tagged_calls(SEED)),),
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
        (objects_or_headed("<tool_calls>", "</tool_calls>", _HUNYUAN_HEAD, _HUNYUAN_TAIL),),
        before_mlx_lm=True,
        around=("<answer>", "</answer>"),
    ),
    Family(
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
    Family(
        "llama4",
        "<|python_start|>",
        (CallBlock("<|python_start|>", whole_calls("<|python_end|>", python_calls, r"\s*\[")),),
        (bare(_LLAMA4_BEGINS, whole_calls("", python_calls, _LLAMA4_BEGINS)),),
    ),
    Family(
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
