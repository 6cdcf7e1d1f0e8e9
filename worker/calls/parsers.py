"""Parsers for blocks of calls that are neither JSON nor tags: calls and objects in Python, and
Gemma's `call:NAME{KEY:VALUE,...}`, whose strings stand between two equal tags.

mlx-lm's parsers take minutes for some texts of Gemma's form, and one of them reads no nested
objects. Models also write Gemma's calls with parentheses, and strings as in JSON.
"""

from __future__ import annotations

import ast
import json
from typing import Any, Final

import regex

from worker.calls.readers import Parse
from worker.calls.values import as_json

_GEMMA_HEAD: Final = regex.compile(r"[\s,]*call:(?P<name>[\w.:/-]+)\s*(?=\{)")
# Models write parentheses in place of the braces, or around them.
_GEMMA_TOKENS: Final = (
    r"(?P<head>call:[\w.:/-]+\s*(?=[{{(]))|{quote}(?P<text>.*?){quote}|"
    r"(?P<string>\"(?:[^\"\\]|\\.)*\")|(?<=[:=,(\[]\s*)(?P<single>'(?:[^'\\\n]|\\.)*')(?=\s*[,)}}\]])|"
    r"(?P<around>\((?=\s*\{{))|(?P<bracket>[()])|"
    r"(?<=[{{(,]\s*)(?P<key>[^\s:=,{{}}()\[\]<\"][^:=,{{}}()\[\]<\"]*)[:=]|"
    r"(?P<bare>[^\s:,{{}}()\[\]<\"][^,{{}}()\[\]<]*)"
)
_DECODER: Final = json.JSONDecoder(strict=False)
# Models write line breaks into strings, which Python forbids.
_STRING: Final = regex.compile(
    r"(?P<long>(?P<quote>\"\"\"|\'\'\').*?(?P=quote))|\"(?:[^\"\\]|\\.)*\"|\'(?:[^\'\\]|\\.)*\'",
    regex.DOTALL,
)
# JSON's names, as models write them in Python.
_LITERALS: Final = {"true": True, "false": False, "null": None}
# Between two calls, one a line.
_NEXT_LINE: Final = regex.compile(r"(?<=\))\s*\n\s*(?=[\w.]+\()")
_PYTHONS: Final = {"True": True, "False": False, "None": None}
_NAMES: Final = ("name", "tool_name", "function")
_ARGUMENTS: Final = ("arguments", "parameters", "args")
_KEYS: Final = frozenset({*_NAMES, *_ARGUMENTS, "type", "id"})
# Llama 3.1 calls the method of a tool.
_METHOD: Final = ".call"


def python_calls(text: str) -> list[Any]:
    """Parse a list of calls in Python, whose arguments are all named. mlx-lm's parser leaves out
    what it can't read.
    """
    written = _STRING.sub(_on_one_line, text.strip())
    parsed = _Literals().visit(ast.parse(written, mode="eval").body)
    calls = parsed.elts if isinstance(parsed, ast.List) else [parsed]
    return [_python_call(call) for call in calls]


def _on_one_line(string: regex.Match[str]) -> str:
    written: str = string[0]
    return written if string["long"] else written.replace("\n", "\\n").replace("\r", "\\r")


class _Literals(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_LITERALS[node.id]) if node.id in _LITERALS else node


def _python_call(node: ast.expr) -> dict[str, Any]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("It is no call with named arguments.")
    arguments = {
        keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg
    }
    if len(arguments) < len(node.keywords):
        raise ValueError("It has an argument without a name.")
    return {"name": ast.unparse(node.func), "arguments": arguments}


def python_lines(text: str) -> list[Any]:
    """Parse calls in Python, one a line."""
    return python_calls(f"[{_NEXT_LINE.sub(', ', text.strip())}]")


def python_methods(text: str) -> list[Any]:
    """Parse `NAME.call(KEY=VALUE, ...)`, one a line."""
    calls = python_lines(text)
    return [call | {"name": call["name"].removesuffix(_METHOD)} for call in calls]


def python_objects(text: str) -> Any:
    """Parse calls that are dictionaries in Python, one or a list."""
    calls = ast.literal_eval(text.strip())
    return calls if isinstance(calls, list) else [calls]


def json_objects(text: str, *, strict: bool = False) -> list[Any]:
    """Parse calls in JSON, one after another or in lists. `strict`: accept only the keys of a call,
    since the text may be JSON of another kind.
    """
    calls, place = list[Any](), 0
    while place < len(text):
        if text[place] in " \t\r\n,;[]}":
            place += 1
            continue
        parsed, place = _DECODER.raw_decode(text, place)
        calls.append(_named(parsed, strict=strict))
    return calls


def _named(parsed: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    if strict and not set(parsed) <= _KEYS:
        raise ValueError("It has other keys than a call.")
    if isinstance(inner := parsed.get("function"), dict):
        return _named(inner, strict=strict)
    (name,) = [parsed[key] for key in _NAMES if key in parsed]
    given = [parsed[key] for key in _ARGUMENTS if key in parsed]
    if len(given) > 1 or (strict and not given):
        raise ValueError("It isn't clear what the arguments are.")
    if not given and not set(parsed) <= _KEYS:
        raise ValueError("It has arguments, but not in their place.")
    arguments = given[0] if given else None
    if isinstance(arguments, str) and arguments.strip():
        arguments = json.loads(arguments)
    return {"name": name, "arguments": arguments or {}}


def gemma_calls(quote: str) -> Parse:
    """A parser for Gemma's calls, whose strings stand between two tags `quote`. The arguments are
    written as JSON first.
    """
    tokens = regex.compile(_GEMMA_TOKENS.format(quote=regex.escape(quote)), regex.DOTALL)

    def parse(text: str) -> list[Any]:
        written, calls, place = tokens.sub(_as_json, text.strip()), list[Any](), 0
        while place < len(written):
            head = _GEMMA_HEAD.match(written, place)
            if head is None:
                raise ValueError(f"Unreadable from character {place} on.")
            parsed, place = _DECODER.raw_decode(written, head.end())
            calls.append({"name": head["name"], "arguments": parsed.get("", parsed)})
        return calls

    return parse


def _as_json(token: regex.Match[str]) -> str:
    match token.lastgroup:
        case "text":
            return json.dumps(token["text"])
        case "single":
            return json.dumps(ast.literal_eval(token["single"]))
        case "key":
            return f"{json.dumps(token['key'].strip())}:"
        case "bare":
            bare = token["bare"].strip()
            return json.dumps(_PYTHONS[bare] if bare in _PYTHONS else as_json(bare))
        case "bracket":
            return "{" if token["bracket"] == "(" else "}"
        case "around":
            return '{"":'
    return str(token[0])
