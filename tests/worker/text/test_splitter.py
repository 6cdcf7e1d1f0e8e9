"""What becomes of tags that are broken, missing, nested or meant as text; stop sequences."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.answers import (
    AnswerPart,
    Reasoning,
    Text,
    ToolCall,
    merged,
)
from worker.calls.assembly import Assembly
from worker.calls.parsers import python_calls
from worker.text.families import FAMILIES, HERMES
from worker.text.format import AnswerFormat, Tags
from worker.text.splitter import HarmonySplitter, Splitter, TagSplitter

THINK = Tags("<think>", "</think>")
QWEN = AnswerFormat("hermes", THINK, HERMES.blocks)
ONE = '{"name": "f", "arguments": {"a": 1}}'
CALL = ToolCall(0, '{"a": 1}', "f")


def _family(name: str) -> AnswerFormat:
    found = next(family for family in FAMILIES if family.name == name)
    return AnswerFormat(name, THINK, found.blocks, found.bare)


def _splitter(format_: AnswerFormat, assembly: Assembly, *, calls: bool = True) -> Splitter:
    if format_.harmony:
        return HarmonySplitter(assembly, calls=calls, header="<|start|>assistant")
    return TagSplitter(format_, assembly, None, calls=calls, state="normal")


def _read(
    text: str,
    format_: AnswerFormat = QWEN,
    *,
    size: int = 1,
    complete: bool = True,
    calls: bool = True,
    stop: tuple[str, ...] = (),
) -> tuple[list[AnswerPart], Assembly]:
    assembly = Assembly(stop)
    splitter = _splitter(format_, assembly, calls=calls)
    parts = []
    for index in range(0, len(text), size):
        splitter.feed(text[index : index + size])
        parts += assembly.collect()
        if assembly.over:
            break
    splitter.finish(complete=complete)
    assembly.finish()
    return merged(parts + assembly.collect()), assembly


def _parts(text: str, format_: AnswerFormat = QWEN, **how: Any) -> list[AnswerPart]:
    parts, _ = _read(text, format_, **how)
    assert _read(text, format_, size=len(text) or 1, **how)[0] == parts
    return parts


def _tagged(text: str) -> str:
    return f"<tool_call>{text}</tool_call>"


@pytest.mark.parametrize(
    "text",
    [
        _tagged('{"name": "f", "arguments": nope}'),
        _tagged('{"name": "f", "arguments": [1]}'),
        _tagged('{"name": "f", "arguments": "[1]"}'),
        _tagged('{"name": "f", "arguments": 7}'),
        _tagged('{"name": "", "arguments": {}}'),
        _tagged('{"arguments": {"a": 1}}'),
        _tagged('{"arguments": {"a": !}, "name": "f"}'),
        _tagged('{"name": "\\x", "arguments": {}}'),
        _tagged("get_weather(1)"),
        _tagged(""),
        _tagged("[]"),
        "<tool_call>",
        "<tool_call",
        '<tool_call>{"name": "f", "argu',
        "Write <tool_call> before a call, and </tool_call> after it.",
        "a < b, a <t and </think> b",
        '{"name": "f", "arguments": {}}',
    ],
)
def test_blocks_without_a_call_are_text(text: str) -> None:
    assert _parts(text) == [Text(text)]
    assert _parts(text, complete=False) == [Text(text)]


def test_a_call_after_what_was_none() -> None:
    broken = _tagged("hm")
    assert _parts(f"{broken} {_tagged(ONE)}") == [Text(broken), CALL]
    assert _parts(f"<tool_call>{_tagged(ONE)}") == [Text("<tool_call>"), CALL]
    assert _parts(f"<tool_call>\n{_tagged(ONE)}") == [Text("<tool_call>"), CALL]


def test_text_after_a_call_within_its_block() -> None:
    assert _parts(_tagged(f"{ONE} junk")) == [CALL, Text("junk</tool_call>")]
    # Models close more than they opened.
    assert _parts(_tagged(f"{ONE}}}")) == [CALL]
    assert _parts(f"<tool_call>{ONE}") == [CALL]
    assert _parts(f"<tool_call>{ONE[:-1]}") == [CALL]


@pytest.mark.parametrize("complete", [True, False])
def test_arguments_that_have_begun_go_on_as_arguments(complete: bool) -> None:
    def parts(arguments: str, rest: str = "") -> list[AnswerPart]:
        begin = '<tool_call>{"name": "f", "arguments": '
        return _parts(begin + arguments + rest, complete=complete)

    for cut in ('{"a": "b', '{"a": "b\\', '{"a": [1', "{", '{"a": oops, {', '{"a": 1]'):
        assert parts(cut) == [ToolCall(0, cut, "f")]
    after = "</tool_call>and <b>"
    for broken in ('{"a": oops!, "b": "<c>"', '{"a": 1] </tool', "{'a': 1}}"):
        assert parts(broken, after) == [ToolCall(0, broken, "f"), Text("and <b>")]


def test_line_breaks_in_strings_become_json() -> None:
    text = _tagged('{"name": "f", "arguments": {"a": "x\n\ty"}}')
    assert _parts(text) == [ToolCall(0, '{"a": "x\\n\\ty"}', "f")]


def test_an_unknown_name_is_a_call() -> None:
    assert _parts(_tagged('{"name": "né/1", "arguments": {}}')) == [ToolCall(0, "{}", "né/1")]


def test_calls_come_as_they_are_written() -> None:
    assembly = Assembly(())
    splitter = _splitter(QWEN, assembly)
    splitter.feed('<tool_call>{"name": "f", "arguments": {')
    assert merged(assembly.collect()) == [ToolCall(0, "{", "f")]
    splitter.feed('"a": "long')
    assert assembly.collect() == [ToolCall(0, '"a": "long')]
    splitter.feed(' text"}')
    assert assembly.collect() == [ToolCall(0, ' text"}')]


QUOTING = '{"name": "f", "arguments": {"a": "<think>x</think> y"}}'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"Hm. {_tagged(ONE)}\nSo.", [Reasoning("Hm."), CALL, Text("So.")]),
        (f"Hm. {_tagged(ONE)}", [Reasoning("Hm."), CALL]),
        ("Use <tool_call> here.</think>So.", [Reasoning("Use <tool_call> here."), Text("So.")]),
        (f"{_tagged(ONE)} no</think>No.", [Reasoning(f"{_tagged(ONE)} no"), Text("No.")]),
        (f"{_tagged(ONE)}</think>{_tagged(ONE)}", [Reasoning(_tagged(ONE)), CALL]),
        (
            f"{_tagged(QUOTING)} no</think>No.",
            [Reasoning(f"{_tagged(QUOTING)} no"), Text("No.")],
        ),
        (_tagged(QUOTING), [ToolCall(0, '{"a": "<think>x</think> y"}', "f")]),
        (
            '<tool_call>{"name": "f", "argu</think>So.',
            [Reasoning('<tool_call>{"name": "f", "argu'), Text("So.")],
        ),
        (
            f"{_tagged(ONE)} or {_tagged(ONE)}</think>",
            [Reasoning(f"{_tagged(ONE)} or {_tagged(ONE)}")],
        ),
    ],
)
def test_a_call_that_is_thought_of_counts_if_the_thought_never_ends(
    text: str, parts: list[AnswerPart]
) -> None:
    assert _parts(f"<think>{text}") == parts


def test_reasoning_goes_on_after_a_tag_that_begins_no_call() -> None:
    assembly = Assembly(())
    splitter = _splitter(QWEN, assembly)
    splitter.feed("<think>I could use <tool_call> for this. Then")
    assert assembly.collect() == [Reasoning("I could use <tool_call> for this. Then")]


@pytest.mark.parametrize(
    "text",
    [
        "Use the tag `<think>` for that, then go on.",
        "A sentence with <think> in it.",
        "```html\n<think>draft</think>\n```\nDone.",
        "~ \n```\n<think>\n```",
    ],
)
def test_a_tag_of_reasoning_may_be_quoted(text: str) -> None:
    assert _parts(f"<think>Hm.</think>{text}") == [Reasoning("Hm."), Text(text)]
    assert _parts(text) == [Text(text)]


def test_reasoning_opens_at_the_beginning_and_right_behind_a_tag() -> None:
    call = _tagged(ONE)
    assert _parts("\n <think>Hm.</think>So.") == [Reasoning("Hm."), Text("So.")]
    assert _parts(f"{call}\n<think>Hm.</think>So.") == [CALL, Reasoning("Hm."), Text("So.")]
    twice = "<think>Hm.</think>\n<think>Hm?</think>So."
    assert _parts(twice) == [Reasoning("Hm.Hm?"), Text("So.")]


@pytest.mark.parametrize("marks", ["```", "~~~", "````md\n```html\nx\n```"])
def test_reasoning_does_not_open_in_a_block_of_code(marks: str) -> None:
    end = marks.partition("\n")[0].rstrip("md")
    text = f"{marks}\n<tool_call>\n<think>x\n{end}\nend"
    assert _parts(text) == [Text(text)]


def test_reasoning_opens_behind_a_call() -> None:
    text = f"{_tagged(ONE)}<think>b</think>c"
    assert _parts(text) == [CALL, Reasoning("b"), Text("c")]


def test_space_beside_tags_is_nobodys() -> None:
    text = f" \n<think>\n\n Hm.\n </think>\n\nA  b\n\n{_tagged(ONE)}\n\n c \n"
    assert _parts(text) == [Reasoning("Hm."), Text("A  b"), CALL, Text("c \n")]
    long = " " * 100
    assert _parts(f"a{long}\n{_tagged(ONE)}") == [Text(f"a{long}\n"), CALL]


def test_a_call_without_end_is_text_from_some_size_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.text.splitter._MOST_RAW_CHARACTERS", 2000)
    monkeypatch.setattr("worker.calls.readers._MOST_WHOLE_CHARACTERS", 1000)
    text = '<tool_call>{"id": "' + "x" * 900
    assembly = Assembly(())
    splitter = _splitter(QWEN, assembly)
    splitter.feed(text)
    assert assembly.collect() == []
    splitter.feed("y" * 200)
    assert assembly.collect() == [Text(text + "y" * 200)]
    whole = "<|python_start|>[" + "1," * 500
    splitter = _splitter(_family("llama4"), assembly)
    splitter.feed(whole)
    assert assembly.collect() == [Text(whole)]


@pytest.mark.parametrize(
    "text",
    [
        "<|python_start|>[f(a={1, 2})]<|python_end|>",
        "<|python_start|>[f(a=...)]<|python_end|>",
        "<|python_start|>[f(a=1e999)]<|python_end|>",
        "<|python_start|>[1, 2]<|python_end|>",
        "<|python_start|>print(1)<|python_end|>",
        "[x for x in y]",
        "[1](http://a.b)",
    ],
)
def test_whatever_a_parser_does_the_text_is_there(text: str) -> None:
    assert _parts(text, _family("llama4")) == [Text(text)]


def test_python_that_is_long_and_broken() -> None:
    with pytest.raises(SyntaxError):
        python_calls("[f(a=" * 4000)


def test_a_cut_block_of_a_whole_parser_is_text() -> None:
    text = '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>\n'
    assert _parts(text, _family("deepseek_v32"), complete=False) == [Text(text)]
    assert _parts(text, _family("deepseek_v32")) == [ToolCall(0, "{}", "f")]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('{"type": "function"}', [Text('{"type": "function"}')]),
        ('{"name": "f"}', [Text('{"name": "f"}')]),
        ('  {"a": 1}', [Text('  {"a": 1}')]),
        (f"Well: {ONE}", [Text(f"Well: {ONE}")]),
        (f"{ONE} Done.", [CALL, Text("Done.")]),
        (f"<think>Hm.</think>\n\n{ONE}", [Reasoning("Hm."), CALL]),
    ],
)
def test_bare_calls(text: str, parts: list[AnswerPart]) -> None:
    assert _parts(text, _family("llama3")) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Hello", [Text("Hello")]),
        ("<|channel|>final<|message|>A<|return|>", [Text("A")]),
        (
            "<|channel|>analysis<|message|>A<|channel|>final<|message|>B",
            [Reasoning("A"), Text("B")],
        ),
        (
            "<|channel|>commentary to=functions.f<|message|>what?<|call|>",
            [Text("<|channel|>commentary to=functions.f<|message|>what?")],
        ),
        (
            "<|channel|>commentary to=functions.f<|message|>",
            [Text("<|channel|>commentary to=functions.f<|message|>")],
        ),
        ('<|channel|>commentary to=f<|message|>{"a": 1', [ToolCall(0, '{"a": 1', "f")]),
        (
            "<|channel|>analysis to=browser.open code<|message|>{}<|call|>",
            [ToolCall(0, "{}", "browser.open")],
        ),
        ("<|channel|>other<|message|>A", [Text("A")]),
        ("<|channel|>analysis??<|message|>A<|end|>", [Reasoning("A")]),
        ("<|channel|>final<|channel|>final<|message|>A", [Text("A")]),
        (
            "<|channel|>commentary to=functions.f<|channel|>commentary"
            "<|constrain|>json<|message|>{}",
            [ToolCall(0, "{}", "f")],
        ),
        ("<|channel|>final<|message|>A<|end|><|start|>assistant<|chan", [Text("A")]),
        ("<|channel|>final<|message|>`<|channel|>` is it.", [Text("`<|channel|>` is it.")]),
        ("<|channel|>analysis<|channel|>final<|message|>A", [Text("A")]),
        ("<|channel|>commentary<|channel|>analysis<|message|>A", [Reasoning("A")]),
        (
            "<|channel|>commentary to=functions.f <|constrain|>json<|constrain|>json<|message|>"
            '{"command":"a\nb"}}<|call|>',
            [ToolCall(0, '{"command":"a\\nb"}', "f")],
        ),
        (
            "<|channel|>commentary to=f <|constrain|>json<|channel|>commentary<|message|><|call|>",
            [ToolCall(0, "{}", "f")],
        ),
    ],
)
def test_harmony(text: str, parts: list[AnswerPart]) -> None:
    assert _parts(text, AnswerFormat(harmony=True)) == parts


def test_names_as_tool_servers_give_them() -> None:
    name = "mcp:files/read_file.v2"
    call = [ToolCall(0, "{}", name)]
    text = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{{}}<|call|>"
    assert _parts(text, AnswerFormat(harmony=True)) == call
    text = f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{{}}<｜tool▁call▁end｜>"
    assert _parts(text, _family("deepseek")) == call
    text = f"<tool_calls><tool_call>{name}\n```json\n{{}}\n```\n</tool_call></tool_calls>"
    assert _parts(text, _family("hunyuan")) == call


def test_harmony_without_tools() -> None:
    text = "<|channel|>commentary to=functions.f<|message|>{}"
    assert _parts(text, AnswerFormat(harmony=True), calls=False) == [Text(text)]


@pytest.mark.parametrize(
    ("stop", "parts"),
    [
        ("m.", [Reasoning("Hm."), Text("Text one"), CALL, Text("two")]),
        ('"a"', [Reasoning("Hm."), Text("Text one"), CALL, Text("two")]),
        ("\n\n", [Reasoning("Hm."), Text("Text one"), CALL, Text("two")]),
        ("t one", [Reasoning("Hm."), Text("Tex")]),
        ("onetwo", [Reasoning("Hm."), Text("Text one"), CALL, Text("two")]),
        ("one ", [Reasoning("Hm."), Text("Text ")]),
        ("wo", [Reasoning("Hm."), Text("Text one"), CALL, Text("t")]),
    ],
)
def test_stop_sequences_are_of_the_text(stop: str, parts: list[AnswerPart]) -> None:
    text = f"<think>Hm.</think>\n\nText one {_tagged(ONE)}two"
    assert _parts(text, stop=(stop,)) == parts


_PIECES = st.lists(
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
            ONE,
            '{"name": "f", "arguments": {',
            "}",
            "]",
            "[",
            '"',
            "\\",
            "\n",
            " ",
            "a",
            "<",
            "<|channel|>",
            "<|message|>",
            "<|start|>assistant",
            "<|end|>",
            "analysis",
            "commentary to=functions.f ",
            "final",
            "<|python_tag|>",
            "<tool_calls>",
            "f\n```json\n",
        ]
    ),
    max_size=14,
).map("".join)


@given(
    _PIECES,
    st.sampled_from([QWEN, AnswerFormat(harmony=True), _family("llama3"), _family("hunyuan")]),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([(), ("a",), ("}",), ("\n",)]),
)
@settings(deadline=None, max_examples=200)
def test_anything_is_read_the_same_in_pieces_of_any_size(
    text: str, format_: AnswerFormat, size: int, complete: bool, stop: tuple[str, ...]
) -> None:
    whole, _ = _read(text, format_, size=len(text) or 1, complete=complete, stop=stop)
    parts, _ = _read(text, format_, size=size, complete=complete, stop=stop)
    assert parts == whole
