"""The forms of calls in tags, by family."""

from __future__ import annotations

from typing import Final

from worker.calls.tagged import Form

_NAME: Final = r"(?P<name>[\w.:/-]+)"
_QUOTED: Final = r"[\"']?(?P<{}>[^\"'<>]+?)[\"']?"


def _functions(start: str, end: str, call_end: str = "</function>") -> Form:
    return Form(
        start,
        end,
        r"<function=[\"']?(?P<name>[^\s<>\"']+)[\"']?>",
        call_end,
        r"<parameter=[\"']?(?P<key>[^\s<>\"']+)[\"']?>",
        "</parameter>",
        lines=True,
    )


def _pairs(prefix: str) -> Form:
    value = (
        rf"<{prefix}arg_key>\s*(?P<key>[^<>]+?)\s*</{prefix}arg_key>"
        rf"(?:\\n|\s)*<{prefix}arg_value>"
    )
    start, end = f"<{prefix}tool_call>", f"</{prefix}tool_call>"
    return Form(start, end, _NAME, "", value, f"</{prefix}arg_value>")


def _invocations(start: str, end: str, mark: str, type_: str = "") -> Form:
    name, key = _QUOTED.format("name"), _QUOTED.format("key")
    return Form(
        start,
        end,
        rf"<{mark}invoke\s(?:[^<>]*?\s)?name={name}>",
        f"</{mark}invoke>",
        rf"<{mark}parameter\s(?:[^<>]*?\s)?name={key}{type_}\s*>",
        f"</{mark}parameter>",
    )


_DSML: Final = "｜DSML｜"
_DSML_TYPE: Final = r"(?:\s+string=\"(?P<type>true|false)\")?"


def _dsml(name: str) -> Form:
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
    "kimi_k3": Form(
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
        rf"<\|open\|>call\s(?:{_XTML}?\s)?tool=\"(?P<name>[^\"]+)\"{_XTML}<\|sep\|>",
        r"<\|close\|>call<\|sep\|>",
        rf"<\|open\|>(?:json{_XTML}|argument\s(?:{_XTML}?\s)?key=\"(?P<key>[^\"]+)\""
        rf"(?:{_XTML}?\stype=\"(?P<type>\w+)\")?{_XTML})<\|sep\|>",
        r"<\|close\|>(?:argument|json)<\|sep\|>",
    ),
    "minicpm5": Form(
        "<function name=",
        "",
        rf"<function\s+name\s*=\s*{_QUOTED.format('name')}\s*>",
        "</function>",
        rf"<param\s+name\s*=\s*{_QUOTED.format('key')}\s*>",
        "</param>",
        cdata=True,
    ),
}
