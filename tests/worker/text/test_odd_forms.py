"""Calls as models write them beside their family's form, and as peers read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.answers import AnswerPart, Text, ToolCall
from protocol.requests import Tools
from tests.worker.text.recorded import HERMES_MARKS, Recorded
from tests.worker.text.test_families import Model, definition, parts_of

QWEN_CODER = "<tool_call>\n<function="
KIMI = "<|tool_calls_section_begin|>"
LLAMA_3 = "<|python_tag|>"
MISTRAL = "[TOOL_CALLS]"
GEMMA_4 = "<|tool_call> <tool_call|>"
GEMMA_TOKENS = ("<|tool_call>", "<tool_call|>", '<|"|>')
KIMI_CALL = (
    '<|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{"command": "ls"}'
    "<|tool_call_end|>"
)
DSML_CALL = (
    '<｜DSML｜invoke name="run">\n<｜DSML｜parameter name="command" string="true">ls'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>"
)
TOOLS = Tools(
    definitions=json.dumps(
        [
            definition("run", command="string"),
            definition("now"),
            definition("mcp.read", path="string"),
        ]
    )
)
RUN = [("run", {"command": "ls"})]

CALLS = [
    (
        "hermes: empty arguments",
        HERMES_MARKS,
        (),
        '<tool_call>{"name": "now", "arguments": ""}</tool_call>',
        [("now", {})],
    ),
    (
        "hermes: null arguments",
        HERMES_MARKS,
        (),
        '<tool_call>{"name": "now", "arguments": null}</tool_call>',
        [("now", {})],
    ),
    (
        "hermes: no arguments",
        HERMES_MARKS,
        (),
        '<tool_call>{"name": "now"}</tool_call>',
        [("now", {})],
    ),
    (
        "hermes: arguments as a text",
        HERMES_MARKS,
        (),
        '<tool_call>{"name": "run", "arguments": "{\\"command\\": \\"ls\\"}"}</tool_call>',
        RUN,
    ),
    (
        "hermes: no first tag",
        HERMES_MARKS,
        (),
        '{"name": "run", "arguments": {"command": "ls"}}\n</tool_call>',
        RUN,
    ),
    (
        "hermes: a dictionary in Python",
        HERMES_MARKS,
        (),
        "<tool_call>{'name': 'run', 'arguments': {'command': 'ls'}}</tool_call>",
        RUN,
    ),
    (
        "hermes: the arguments first",
        HERMES_MARKS,
        (),
        '<tool_call>{"arguments": {"command": "ls"}, "name": "run"}</tool_call>',
        RUN,
    ),
    (
        "hermes: OpenAI's own form",
        HERMES_MARKS,
        (),
        '<tool_call>{"type": "function", '
        '"function": {"name": "run", "arguments": {"command": "ls"}}}</tool_call>',
        RUN,
    ),
    (
        "qwen coder: no first tag",
        QWEN_CODER,
        (),
        "<function=run>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>",
        RUN,
    ),
    (
        "kimi: the section's singular",
        KIMI,
        (),
        f"<|tool_call_section_begin|>{KIMI_CALL}<|tool_call_section_end|>",
        RUN,
    ),
    ("kimi: no section", KIMI, (), KIMI_CALL, RUN),
    (
        "kimi: dots in the name",
        KIMI,
        (),
        f"{KIMI}{KIMI_CALL.replace('run', 'mcp.read')}<|tool_calls_section_end|>",
        [("mcp.read", {"command": "ls"})],
    ),
    (
        "gemma: parentheses",
        GEMMA_4,
        GEMMA_TOKENS,
        '<|tool_call>call:run(command="ls")<tool_call|>',
        RUN,
    ),
    (
        "gemma: parentheses around braces",
        GEMMA_4,
        GEMMA_TOKENS,
        '<|tool_call>call:run({command: "ls"})<tool_call|>',
        RUN,
    ),
    (
        "gemma: plain quotes",
        GEMMA_4,
        GEMMA_TOKENS,
        '<|tool_call>call:run{"command": "echo } {"}<tool_call|>',
        [("run", {"command": "echo } {"})],
    ),
    ("llama 3: a method", LLAMA_3, (), '<|python_tag|>run.call(command="ls")', RUN),
    ("llama 3: a method without a tag", LLAMA_3, (), 'run.call(command="ls")', RUN),
    ("llama 3: its custom form", LLAMA_3, (), '<function=run>{"command": "ls"}</function>', RUN),
    ("mistral: no first tag", MISTRAL, (), 'run[ARGS]{"command": "ls"}', RUN),
    (
        "deepseek: tool_calls",
        "｜DSML｜",
        (),
        f"<｜DSML｜tool_calls>\n{DSML_CALL}\n</｜DSML｜tool_calls>",
        RUN,
    ),
    (
        "olmo: line breaks within strings",
        "<function_calls>",
        (),
        '<function_calls>\nrun(command="a\nb")\nnow()\n</function_calls>',
        [("run", {"command": "a\nb"}), ("now", {})],
    ),
    (
        "llama 3: two methods",
        LLAMA_3,
        (),
        '<|python_tag|>run.call(command="ls")\nrun.call(command="\\ud83d\\ude00")',
        [*RUN, ("run", {"command": "😀"})],
    ),
    (
        "gemma: single quotes, and names of Python",
        GEMMA_4,
        GEMMA_TOKENS,
        "<|tool_call>call:run{command: 'ls, x', now: True, n: NaN}<tool_call|>",
        [("run", {"command": "ls, x", "now": True, "n": "NaN"})],
    ),
    (
        "deepseek: typed by the schema",
        "｜DSML｜",
        (),
        DSML_CALL.replace('string="true">ls', 'string="false">1e999'),
        [("run", {"command": "1e999"})],
    ),
    (
        "deepseek: no block",
        "｜DSML｜",
        (),
        DSML_CALL,
        RUN,
    ),
]
TEXTS = [
    ("json of another kind", HERMES_MARKS, '{"name": "run", "arguments": {"command": "ls"}}'),
    (
        "a call of nobody, without its first tag",
        HERMES_MARKS,
        '{"name": "nobody", "arguments": {}}</tool_call>',
    ),
    ("a method of nobody", LLAMA_3, 'subprocess.call(["ls"])'),
    ("flat arguments", HERMES_MARKS, '<tool_call>{"name": "run", "command": "ls"}</tool_call>'),
    ("arguments without names", LLAMA_3, '<|python_tag|>run.call("ls")'),
    ("arguments in a dictionary", LLAMA_3, '<|python_tag|>run.call(**{"command": "ls"})'),
    ("broken Python", LLAMA_3, '<|python_tag|>run.call(command="a" path="b")'),
    ("a quoted function", QWEN_CODER, "Write `<function=run>` first."),
]


def _read(folder: Path, marks: str, tokens: tuple[str, ...], answer: str) -> list[list[AnswerPart]]:
    """The parts of an answer, in the tokens of its tags and in tokens of a byte."""
    model = Model(Recorded("odd", "", answer, [], marks, tokens), folder / "model")
    given = (model.ids([answer]), model.byte_ids(answer))
    return [parts_of(model.stream(TOOLS), token_ids) for token_ids in given]


def _calls(parts: list[AnswerPart]) -> list[tuple[str | None, Any]]:
    return [(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, ToolCall)]


@pytest.mark.parametrize(
    ("name", "marks", "tokens", "answer", "calls"), CALLS, ids=[call[0] for call in CALLS]
)
def test_is_read_as_a_call(
    name: str, marks: str, tokens: tuple[str, ...], answer: str, calls: list[Any], tmp_path: Path
) -> None:
    for parts in _read(tmp_path, marks, tokens, answer):
        assert _calls(parts) == calls
        assert not [part for part in parts if isinstance(part, Text)]


@pytest.mark.parametrize(("name", "marks", "answer"), TEXTS, ids=[text[0] for text in TEXTS])
def test_stays_a_text(name: str, marks: str, answer: str, tmp_path: Path) -> None:
    for parts in _read(tmp_path, marks, (), answer):
        assert parts == [Text(answer)]
