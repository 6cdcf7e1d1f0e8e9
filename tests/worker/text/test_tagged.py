"""Calls in tags whose values quote the tags, in the form of each family."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.answers import AnswerPart, Text, ToolCall, merged
from worker.calls.assembly import Assembly
from worker.calls.tagged import BARE_FUNCTIONS, DSML, FUNCTIONS, OF_MLX_LM, SEED, TagForm
from worker.text.families import tagged_calls
from worker.text.format import AnswerFormat, CallBlock
from worker.text.splitter import TagSplitter

DEFINITIONS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"properties": {key: {"type": "string"} for key in ("path", "content")}},
        },
    }
    for name in ("write_file", "read")
]
# Writes the inner part of a call: its name, and its arguments.
Write = Callable[[str, Mapping[str, str]], str]


class Family(NamedTuple):
    form: TagForm
    write: Write
    tags: tuple[str, ...]
    # The text between two calls of a block; None: a block has one call.
    between: str | None = "\n"


def _functions(name: str, arguments: Mapping[str, str]) -> str:
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<function={name}>\n{inner}</function>"


def _pairs(prefix: str = "") -> Write:
    def write(name: str, arguments: Mapping[str, str]) -> str:
        return f"{name}\n" + "".join(
            f"<{prefix}arg_key>{key}</{prefix}arg_key>\n"
            f"<{prefix}arg_value>{value}</{prefix}arg_value>\n"
            for key, value in arguments.items()
        )

    return write


def _invocations(mark: str = "", type_: str = "") -> Write:
    def write(name: str, arguments: Mapping[str, str]) -> str:
        inner = "".join(
            f'<{mark}parameter name="{key}"{type_}>{value}</{mark}parameter>\n'
            for key, value in arguments.items()
        )
        return f'<{mark}invoke name="{name}">\n{inner}</{mark}invoke>'

    return write


def _elements(name: str, arguments: Mapping[str, str]) -> str:
    inner = "".join(f'<param name="{k}"><![CDATA[{v}]]></param>' for k, v in arguments.items())
    return f'<function name="{name}">{inner}</function>'


def _xtml(name: str, arguments: Mapping[str, str]) -> str:
    inner = "".join(
        f'<|open|>argument key="{key}" type="string"<|sep|>{value}<|close|>argument<|sep|>'
        for key, value in arguments.items()
    )
    return f'<|open|>call tool="{name}" index="1"<|sep|>{inner}<|close|>call<|sep|>'


_FUNCTION_TAGS = ("<function=a>", "</function>", "<parameter=b>", "</parameter>")
_PAIR_TAGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>")
_XML_TAGS = ('<invoke name="a">', "</invoke>", '<parameter name="b">', "</parameter>")
FAMILIES = {
    "qwen3_coder": Family(FUNCTIONS, _functions, (*_FUNCTION_TAGS, "</tool_call>", "<tool_call>")),
    "seed": Family(SEED, _functions, (*_FUNCTION_TAGS, "</seed:tool_call>")),
    "bare": Family(BARE_FUNCTIONS, _functions, _FUNCTION_TAGS),
    "glm": Family(OF_MLX_LM["glm47"], _pairs(), _PAIR_TAGS, None),
    "longcat": Family(
        OF_MLX_LM["longcat"],
        _pairs("longcat_"),
        ("</longcat_arg_value>", "<longcat_arg_key>", "</longcat_tool_call>"),
        None,
    ),
    "minimax": Family(
        OF_MLX_LM["minimax_m2"], _invocations(), (*_XML_TAGS, "</minimax:tool_call>")
    ),
    "muse_spark": Family(
        OF_MLX_LM["muse_spark"],
        _invocations("atem:"),
        ("</atem:parameter>", "</atem:invoke>", "</atem:function_calls>"),
    ),
    "deepseek": Family(
        DSML[0],
        _invocations("｜DSML｜", ' string="true"'),
        ("</｜DSML｜parameter>", "</｜DSML｜invoke>", "</｜DSML｜function_calls>"),
    ),
    "kimi_k3": Family(
        OF_MLX_LM["kimi_k3"],
        _xtml,
        ("<|close|>argument<|sep|>", "<|close|>call<|sep|>", "<|close|>tools<|sep|>"),
        "",
    ),
    "minicpm5": Family(
        OF_MLX_LM["minicpm5"], _elements, ('<param name="a">', "</param>", "</function>"), ""
    ),
}


def _parts(form: TagForm, text: str, size: int, *, complete: bool = True) -> list[AnswerPart]:
    assembly = Assembly(())
    known = not form.end
    block = CallBlock(form.start, tagged_calls(form, known=known), loose=known)
    splitter = TagSplitter(
        AnswerFormat(blocks=(block,)), assembly, DEFINITIONS, calls=True, state="normal"
    )
    parts = list[AnswerPart]()
    for index in range(0, len(text), size):
        splitter.feed(text[index : index + size])
        parts += assembly.collect()
    splitter.finish(complete=complete)
    assembly.finish()
    return merged(parts + assembly.collect())


def _calls(parts: list[AnswerPart]) -> list[tuple[str | None, dict[str, Any]]]:
    return [(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, ToolCall)]


def _block(family: Family, *calls: tuple[str, Mapping[str, str]]) -> str:
    written = (family.between or "\n").join(family.write(*call) for call in calls)
    start = family.form.start if family.form.end else ""
    line = "\n" if family.between == "\n" else ""
    return f"{start}{line}{written}{line}{family.form.end}"


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@st.composite
def _values(draw: st.DrawFn, tags: tuple[str, ...]) -> str:
    """A text that quotes tags. A word stands behind each, for `</parameter></function>` would end
    the value for any reader.
    """
    words = st.sampled_from(("x", "  if a:\n    b", "`", '"q" \\n', "é\n\n"))
    pieces = [draw(words)]
    for tag in draw(st.lists(st.sampled_from(tags), max_size=4)):
        pieces += [draw(st.sampled_from(("", " ", "\n"))), tag, draw(st.sampled_from(("", " ")))]
        pieces.append(draw(words))
    return draw(st.sampled_from(("", " ", "\n", "    "))) + "".join(pieces)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", FAMILIES)
def test_values_may_quote_every_tag(name: str, data: st.DataObject) -> None:
    family = FAMILIES[name]
    # What one value opens and the next one closes would be one value for any reader.
    closing = data.draw(st.booleans())
    is_closing = ("</", "<|close|>")
    tags = tuple(tag for tag in family.tags if tag.startswith(is_closing) == closing)
    values = _values(tags or family.tags)
    first = {"path": data.draw(values), "content": data.draw(values)}
    second = {"path": data.draw(values)}
    calls = [("write_file", first), ("read", second)]
    if family.between is None:
        text = "\n".join(_block(family, call) for call in calls)
    else:
        text = _block(family, *calls)
    parts = _parts(family.form, text, data.draw(st.sampled_from((1, 5, 1000))))
    assert _calls(parts) == calls
    assert not [part for part in parts if isinstance(part, Text)]


def test_a_value_keeps_its_white_space(family: Family) -> None:
    value = "    if x:\n        return 1\n"
    text = _block(family, ("write_file", {"content": value}))
    assert _calls(_parts(family.form, text, 1)) == [("write_file", {"content": value})]


def test_a_call_needs_no_argument(family: Family) -> None:
    assert _calls(_parts(family.form, _block(family, ("read", {})), 1)) == [("read", {})]


def test_text_stays_around_calls(family: Family) -> None:
    block = _block(family, ("read", {"path": "a"}))
    parts = _parts(family.form, f"First this.\n{block}\nThen that.", 1)
    assert [part.text for part in parts if isinstance(part, Text)] == ["First this.", "Then that."]
    assert _calls(parts) == [("read", {"path": "a"})]


def test_an_answer_that_is_cut_off_is_text(family: Family) -> None:
    block = _block(family, ("read", {"path": "a"}))
    for end in range(1, len(block) - len(family.form.end or "</function>") - 1):
        parts = _parts(family.form, block[:end], 1, complete=False)
        assert parts == [Text(block[:end])], block[:end]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_value_may_be_a_part_of_a_call_with_the_end_of_its_block(size: int) -> None:
    value = (
        "2\n    </parameter>\n<parameter=line>\nx\n</parameter>\n</function>\n</tool_call>\n"
        '<tool_call>\n{"name": "read"}\n</tool_call>\nand on'
    )
    family = FAMILIES["qwen3_coder"]
    calls = [("write_file", {"content": value, "path": "a"}), ("read", {"path": value})]
    for call in calls:
        assert _calls(_parts(family.form, _block(family, call), size)) == [call]
    assert _calls(_parts(family.form, _block(family, *calls), size)) == calls


@pytest.mark.parametrize("size", [1, 1000])
def test_text_stands_between_two_blocks(family: Family, size: int) -> None:
    calls = [("write_file", {"path": "a", "content": "b"}), ("read", {"path": "c"})]
    for values in (calls, [*reversed(calls)]):
        text = "\nNow the second:\n".join(_block(family, call) for call in values)
        parts = _parts(family.form, text, size)
        assert _calls(parts) == values
        assert [e.text for e in parts if isinstance(e, Text)] == ["Now the second:"]


@pytest.mark.parametrize(
    ("name", "opening"),
    [
        ("qwen3_coder", "<parameter=path>"),
        ("seed", "<parameter=path>"),
        ("bare", "<parameter=path>"),
        ("glm", "<arg_key>path</arg_key>\n<arg_value>"),
        ("minimax", '<parameter name="path">'),
        ("deepseek", '<｜DSML｜parameter name="path" string="true">'),
        ("minicpm5", '<param name="path">'),
    ],
)
def test_an_open_tag_of_an_argument_that_is_there_is_quoted(name: str, opening: str) -> None:
    family = FAMILIES[name]
    call = ("write_file", {"path": "a", "content": f"x\n{opening}\ny"})
    assert _calls(_parts(family.form, _block(family, call), 1)) == [call]


@pytest.mark.parametrize("value", ["<p>Hi</p>", "a</b>\nc", "</x>"])
def test_a_tag_of_a_value_is_no_misspelled_end(value: str) -> None:
    text = (
        "<tool_call>\n<function=write_file>\n<parameter=content>\n{}\n{}</function>\n</tool_call>"
    )
    more = "<parameter=path>\na\n</parameter>\n"
    assert _calls(_parts(FUNCTIONS, text.format(value, ""), 1)) == [
        ("write_file", {"content": value})
    ]
    assert _calls(_parts(FUNCTIONS, text.format(value, more), 1)) == [
        ("write_file", {"content": value, "path": "a"})
    ]


def test_a_block_without_its_first_tag_and_one_with_it() -> None:
    family = FAMILIES["qwen3_coder"]
    calls = [("write_file", {"content": "b"}), ("read", {"path": "c"})]
    first, second = (_block(family, call) for call in calls)
    text = f"{first.removeprefix('<tool_call>').lstrip()}\n{second}"
    assert _calls(_parts(BARE_FUNCTIONS, text, 1)) == calls


def test_cdata_is_text_up_to_the_end_tag() -> None:
    value = 'a </param></function> b\n<param name="path">\n' + "x = 1\n" * 4000
    text = (
        f'<function name="write_file"><param name="content"><![CDATA[{value}]]></param></function>'
    )
    form = OF_MLX_LM["minicpm5"]
    assert _calls(_parts(form, text + " then", 5)) == [("write_file", {"content": value})]


@pytest.mark.parametrize("keys", [("line", "path"), ("path", "line", "content"), ("path", "line")])
def test_an_argument_that_the_tool_does_not_know_swallows_none(
    family: Family, keys: tuple[str, ...]
) -> None:
    call = ("write_file", dict.fromkeys(keys, "a"))
    assert _calls(_parts(family.form, _block(family, call), 1)) == [call]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=read>\n<parameter=path>\na\n</function>\n</tool_call>",
        "<tool_call>\n<function=read>\n<parameter=path>\na\n</paramter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n</function>",
        "<tool_call>\n<function=read>\n<parameter=path>a</parameter></function></tool_call>",
        '<tool_call>\n<function="read">\n<parameter="path">\na\n</parameter>\n</function>\n'
        "</tool_call>",
    ],
)
def test_tags_that_models_drop_or_misspell(text: str) -> None:
    assert _calls(_parts(FUNCTIONS, text, 1)) == [("read", {"path": "a"})]


def test_a_misspelled_tag_swallows_no_argument() -> None:
    text = (
        "<tool_call>\n<function=write_file>\n<parameter=path>\na\n</paramter>\n"
        "<parameter=content>\nb\n</parameter>\n</function>\n</tool_call>"
    )
    assert _calls(_parts(FUNCTIONS, text, 1)) == [("write_file", {"path": "a", "content": "b"})]


@pytest.mark.parametrize(
    "text",
    [
        "Write `<function=read>` for that.",
        "```\n<function=read>\n</function>\n```",
        "<function=unknown>\n<parameter=path>\na\n</parameter>\n</function>",
        "<function=read is not a call",
    ],
)
def test_a_call_without_a_block_may_be_quoted(text: str) -> None:
    assert _parts(BARE_FUNCTIONS, text, 1) == [Text(text)]
