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

from worker.mlx_lm.text import parse_python
from worker.text.readers import Parse

_GEMMA_HEAD: Final = regex.compile(r"[\s,]*call:(?P<name>[\w.:/-]+)\s*(?=\{)")
# Models write parentheses in place of the braces, or around them.
_GEMMA_TOKENS: Final = (
    r"(?P<head>call:[\w.:/-]+\s*(?=[{{(]))|{quote}(?P<text>.*?){quote}|"
    r"(?P<string>\"(?:[^\"\\]|\\.)*\")|(?P<around>\((?=\s*\{{))|(?P<bracket>[()])|"
    r"(?<=[{{(,]\s*)(?P<key>[^\s:=,{{}}()\[\]<\"][^:=,{{}}()\[\]<\"]*)[:=]|"
    r"(?P<bare>[^\s:,{{}}()\[\]<\"][^,{{}}()\[\]<]*)"
)
_DECODER: Final = json.JSONDecoder(strict=False)
# In characters. Longer texts must be valid Python: mlx-lm's parser takes too long for others.
_MOST_BROKEN_PYTHON: Final = 1 << 13
_NAMES: Final = ("name", "tool_name", "function")
_ARGUMENTS: Final = ("arguments", "parameters", "args")
_KEYS: Final = frozenset({*_NAMES, *_ARGUMENTS, "type", "id"})
# Llama 3.1 calls the method of a tool.
_METHOD: Final = ".call"


def python_calls(text: str) -> Any:
    """Parse a list of calls in Python."""
    if len(text) > _MOST_BROKEN_PYTHON:
        ast.parse(text.strip(), mode="eval")
    return parse_python(text)


def python_lines(text: str) -> Any:
    """Parse calls in Python, one a line."""
    return python_calls(f"[{', '.join(text.strip().splitlines())}]")


def python_methods(text: str) -> Any:
    """Parse `NAME.call(KEY=VALUE, ...)`."""
    call = python_calls(f"[{text.strip()}]")
    return call | {"name": call["name"].removesuffix(_METHOD)}


def python_objects(text: str) -> Any:
    """Parse calls that are dictionaries in Python, one or a list."""
    calls = ast.literal_eval(text.strip())
    return calls if isinstance(calls, list) else [calls]


def json_objects(text: str, *, strict: bool = False) -> list[Any]:
    """Parse calls in JSON, one after another or in lists. `strict`: accept only the keys of a call,
    since the text may be JSON of another kind.
    """
    calls, at = list[Any](), 0
    while at < len(text):
        if text[at] in " \t\r\n,;[]}":
            at += 1
            continue
        found, at = _DECODER.raw_decode(text, at)
        calls.append(_named(found, strict=strict))
    return calls


def _named(found: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    if strict and not set(found) <= _KEYS:
        raise ValueError("It has other keys than a call.")
    if isinstance(inner := found.get("function"), dict):
        return _named(inner, strict=strict)
    (name,) = [found[key] for key in _NAMES if key in found]
    given = [found[key] for key in _ARGUMENTS if key in found]
    if len(given) > 1 or (strict and not given):
        raise ValueError("It isn't clear what the arguments are.")
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
        written, calls, at = tokens.sub(_as_json, text.strip()), list[Any](), 0
        while at < len(written):
            head = _GEMMA_HEAD.match(written, at)
            if head is None:
                raise ValueError(f"Unreadable from character {at} on.")
            found, at = _DECODER.raw_decode(written, head.end())
            calls.append({"name": head["name"], "arguments": found.get("", found)})
        return calls

    return parse


def _as_json(token: regex.Match[str]) -> str:
    match token.lastgroup:
        case "text":
            return json.dumps(token["text"])
        case "key":
            return f"{json.dumps(token['key'].strip())}:"
        case "bare":
            bare = token["bare"].strip()
            try:
                json.loads(bare)
            except ValueError:
                return json.dumps(bare)
            return str(bare)
        case "bracket":
            return "{" if token["bracket"] == "(" else "}"
        case "around":
            return '{"":'
    return str(token[0])
