"""The forms of calls that mlx-lm has no parser of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import regex
from mlx_lm.tool_parsers import qwen3_coder

from worker.text.format import Bare, Block, Tags, either, headed, objects, whole
from worker.text.mlx_lm_formats import FUNCTION_TAGS, closed, functions, python_calls
from worker.text.readers import ObjectCalls, WholeCalls


class Family(NamedTuple):
    """Its template, or its vocabulary, has the `mark`. `before_mlx_lm`: its template has what
    mlx-lm knows others by. Those `around` are tags of the answer itself.
    """

    name: str
    mark: str
    blocks: tuple[Block, ...]
    bare: Bare | None = None
    before_mlx_lm: bool = False
    around: tuple[str, ...] = ()


def _python_lines(text: str, definitions: Any) -> Any:
    """A call a line, as in a program."""
    return python_calls(f"[{', '.join(text.strip().splitlines())}]", definitions)


# V3 and R1 name the kind first, and put the arguments in a fence; V3.1 does neither.
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


def _dsml(text: str, _definitions: Any) -> list[Any]:
    """DeepSeek V3.2's markup, which mlx-lm writes and doesn't read."""
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


_HUNYUAN_HEAD: Final = (
    r"\s*(?:```)?\s*(?:</tool_call>)?\s*<tool_call>\s*(?P<name>[\w.:/-]+)\s*(?:```json)?\s*\{"
)
_HUNYUAN_TAIL: Final = r"\s*(?:```)?\s*(?:</tool_call>)?\s*</tool_calls>"
_LLAMA4_BEGINS: Final = regex.compile(r"\[\s*[\w.]+\(")

HERMES: Final = Family("hermes", "<tool_call>", (objects("<tool_call>", "</tool_call>"),))

# In order: what an earlier one has, a later one may have too.
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
                closed(functions(qwen3_coder.parse_tool_call), FUNCTION_TAGS),
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

# Those that mlx-lm doesn't know. The last is for templates that write it in ordinary tokens.
THOUGHTS: Final = (
    Tags("<seed:think>", "</seed:think>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    Tags("<|inner_prefix|>", "<|inner_suffix|>"),
    Tags("◁think▷", "◁/think▷"),
    Tags("<thought>", "</thought>"),
    Tags("<think>", "</think>"),
)
