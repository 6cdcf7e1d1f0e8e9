"""The tools of a response: what a model is told of them, and what its calls are to the client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from gateway.http.bodies import ABSENT, Part, given
from gateway.http.chat.tools import FunctionBody
from gateway.system.refusal import Refusal

Kind: TypeAlias = Literal["function", "custom", "tool_search", "local_shell"]

_TEXT: Final = Raw(
    b'{"type":"object","properties":{"input":{"type":"string"}},'
    b'"required":["input"],"additionalProperties":false}'
)
_COMMAND: Final = Raw(
    b'{"type":"object","properties":{'
    b'"command":{"type":"array","items":{"type":"string"}},'
    b'"working_directory":{"type":"string"},"timeout_ms":{"type":"integer"},'
    b'"env":{"type":"object","additionalProperties":{"type":"string"}}},'
    b'"required":["command"],"additionalProperties":false}'
)


class Tool(Part, omit_defaults=True):
    """Of any type. A namespace has `tools`, a custom tool's input a `format`."""

    type: str = ""
    name: str | None = None
    description: str | None = None
    parameters: Raw = ABSENT
    strict: bool | None = None
    format: Raw = ABSENT
    tools: list[Tool] | None = None
    execution: str | None = None
    defer_loading: bool | None = None


class _Format(Struct):
    type: str = "text"
    syntax: str = ""
    definition: str = ""


class Meaning(Struct, frozen=True):
    """What a call of a function is to the client."""

    kind: Kind
    name: str
    namespace: str | None = None


class Told(Struct, frozen=True):
    """A tool as a model is told of it, and where the body has it."""

    function: FunctionBody
    meaning: Meaning
    path: str


def told_name(namespace: str | None, name: str) -> str:
    return name if namespace is None else f"{namespace}__{name}"


def runs_here(tool: Tool) -> bool:
    """Whether a client runs it; others run at OpenAI."""
    if tool.type == "tool_search":
        return tool.execution == "client"
    return tool.type in ("function", "custom", "namespace", "local_shell")


def told(tools: Iterable[Tool], path: str, namespace: str | None = None) -> Iterator[Told]:
    """What can be told to a model as functions; a client can't run the rest either.

    Raises:
        Refusal: one of them has no type or no name, or its format can't be read.
    """
    for index, tool in enumerate(tools):
        at = f"{path}[{index}]"
        if not tool.type:
            raise _missing(f"{at}.type")
        if not runs_here(tool):
            continue
        if tool.type == "namespace":
            yield from told(tool.tools or (), f"{at}.tools", _name(tool, at))
            continue
        meaning = Meaning("function", _name(tool, at), namespace)
        name = told_name(namespace, meaning.name)
        function = FunctionBody(name, tool.description, tool.parameters, tool.strict)
        match tool.type:
            case "custom":
                meaning = msgspec.structs.replace(meaning, kind="custom")
                function = FunctionBody(name, _described(tool, at), _TEXT)
            case "tool_search":
                meaning = msgspec.structs.replace(meaning, kind="tool_search")
            case "local_shell":
                meaning = msgspec.structs.replace(meaning, kind="local_shell")
                about = "Runs a command, given as a list of words, on the user's machine."
                function = FunctionBody(name, about, _COMMAND)
        yield Told(function, meaning, at)


def _name(tool: Tool, path: str) -> str:
    if tool.type in ("tool_search", "local_shell"):
        return tool.type
    if tool.name is None:
        raise _missing(f"{path}.name")
    return tool.name


def _described(tool: Tool, path: str) -> str:
    """The model is told the grammar of what it is to write; nothing holds it to that."""
    about = [tool.description] if tool.description else []
    if given(tool.format):
        try:
            asked = msgspec.json.decode(tool.format, type=_Format)
        except (msgspec.MsgspecError, RecursionError) as error:
            param = f"{path}.format"
            raise Refusal(
                "invalid_request_error", f"{param} can't be read: {error}.", param=param
            ) from error
        if asked.type == "grammar":
            about.append(f"The input matches this {asked.syntax} grammar:\n{asked.definition}")
    return "\n\n".join(about)


def _missing(param: str) -> Refusal:
    return Refusal("invalid_request_error", f"{param} is missing.", param=param)
