"""Checks the functions that a model may call, and writes them in the form that a worker gets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.http.wire.bodies import ABSENT, BodyPart, given
from gateway.http.wire.errors import invalid
from protocol.requests import ToolChoice, Tools

# OpenAI's rule, extended for the names of MCP servers.
_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
# The most functions of a request. OpenAI allows 128; clients of many MCP servers send hundreds.
_MOST_FUNCTIONS: Final = 1024
# The most bytes of all schemas together: they fit a prompt, and decode within milliseconds.
_MOST_SCHEMA_BYTES: Final = 1 << 20

# The modes of a choice that come as an object with a type.
MODES: Final[dict[str, ToolChoice]] = {
    "auto": "auto",
    "none": "none",
    "any": "required",
    "required": "required",
}

Schema = Annotated[Raw, Meta(extra_json_schema={"type": ["object", "null"]})]


class FunctionBody(BodyPart):
    """`parameters` is a JSON schema, kept as it was written."""

    name: str
    description: str | None = None
    parameters: Schema = ABSENT
    strict: bool | None = None


class ToolBody(BodyPart):
    function: FunctionBody
    type: Literal["function"]


class TemplateFunction(Struct, omit_defaults=True):
    """A function as chat templates see it, without the fields that the body doesn't have."""

    name: str
    description: str | None = None
    parameters: Raw | None = None
    strict: bool | None = None


class NamedFunction(Struct):
    name: str


class AllowedTool(Struct):
    function: NamedFunction
    type: Literal["function"]


class AllowedTools(Struct):
    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class ChosenTool(Struct):
    """A choice of one function, of some allowed functions, or a mode as an object."""

    type: Literal["function", "allowed_tools", "auto", "none", "any", "required"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


ToolChoiceBody = ToolChoice | ChosenTool


def tools_of(
    bodies: Sequence[ToolBody] | None,
    choice: ToolChoiceBody | None,
    *,
    parallel: bool,
    mentioned: Collection[str] = (),
) -> Tools | None:
    """The tools for a worker. None: the body has no tools. Messages of the conversation describe
    the functions in `mentioned`. Of two functions of one name the later one counts.

    Raises:
        Refusal: a name or a schema is invalid, or the choice names an unknown function.
    """
    if isinstance(choice, ChosenTool):
        choice = MODES.get(choice.type, choice)
    if not bodies:
        if choice in (None, "none", "auto"):
            return None
        raise invalid("tool_choice: there are no tools to choose from: send tools.", "tool_choice")
    _check_amount(bodies)
    names = [_name(index, body) for index, body in enumerate(bodies)]
    for index, body in enumerate(bodies):
        _check_schema(f"tools[{index}].function.parameters", body.function.parameters)
    mode, name, allowed = _choice(choice, names)
    last = dict(zip(names, bodies, strict=True))
    offered = [tool for name, tool in last.items() if name in allowed]
    return Tools(
        definitions=_definitions(
            function_body
            for function_body in offered
            if function_body.function.name not in mentioned
        ),
        mentioned=_definitions(
            function_body for function_body in offered if function_body.function.name in mentioned
        ),
        choice=mode,
        name=name,
        parallel=parallel,
    )


def replaced(names: Iterable[str]) -> set[str]:
    """The names of the functions that a later one of the same name replaces, for the header that
    says what was left out.
    """
    return {name for name, count in Counter(names).items() if count > 1}


def _definitions(bodies: Iterable[ToolBody]) -> str:
    tools = [{"function": template_function(body.function), "type": body.type} for body in bodies]
    return msgspec.json.encode(tools).decode()


def _check_amount(bodies: Sequence[ToolBody]) -> None:
    if len(bodies) > _MOST_FUNCTIONS:
        raise invalid(
            f"tools has {len(bodies):,} functions, of {_MOST_FUNCTIONS:,} at most.", "tools"
        )
    schema_bytes = sum(len(bytes(body.function.parameters)) for body in bodies)
    if schema_bytes > _MOST_SCHEMA_BYTES:
        raise invalid(
            f"tools: the parameters of all functions take {schema_bytes:,} bytes, of "
            f"{_MOST_SCHEMA_BYTES:,} at most.",
            "tools",
        )


def template_function(body: FunctionBody) -> TemplateFunction:
    parameters = body.parameters if given(body.parameters) else None
    return TemplateFunction(body.name, body.description, parameters, body.strict)


def _name(index: int, body: ToolBody) -> str:
    name = body.function.name
    if _NAME.fullmatch(name) is None:
        raise invalid(
            f"tools[{index}].function.name is {name[:100]!r}: use 1 to 128 letters, digits, or any "
            "of _-.:/ .",
            f"tools[{index}].function.name",
        )
    return name


def _check_schema(param: str, schema: Raw) -> None:
    if given(schema) and not bytes(schema).lstrip().startswith(b"{"):
        raise invalid(f"{param}: send a JSON schema, which is an object.", param)
    try:
        msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError) as error:
        # msgspec has not decoded the raw text before, so errors in it show only here.
        raise invalid(f"{param} can't be read: {error}.", param) from error


def _choice(
    choice: ToolChoiceBody | None, names: list[str]
) -> tuple[ToolChoice, str | None, set[str]]:
    """The mode, the function that must be called (None: any), and all callable functions."""
    everything = set(names)
    match choice:
        case None:
            return "auto", None, everything
        case "auto" | "none" | "required":
            return choice, None, everything
        case ChosenTool("function", NamedFunction(name)):
            _check_known([name], everything)
            return "required", name, everything
        case ChosenTool("allowed_tools", _, AllowedTools(mode, tools)):
            allowed = [tool.function.name for tool in tools]
            _check_known(allowed, everything)
            return mode, None, set(allowed)
    raise invalid(
        "tool_choice: with type function send function, with allowed_tools send allowed_tools.",
        "tool_choice",
    )


def _check_known(names: list[str], known: set[str]) -> None:
    unknown = next((name for name in names if name not in known), None)
    if not names:
        raise invalid(
            "tool_choice: allowed_tools names no function that runs here: name one of tools, or "
            "leave tool_choice out.",
            "tool_choice",
        )
    if unknown is not None:
        raise invalid(f"tool_choice: there is no function {unknown!r} in tools.", "tool_choice")


def arguments_object(arguments: str) -> Raw:
    """The arguments of a call as a JSON object. Empty if the model wrote something else."""
    try:
        if isinstance(msgspec.json.decode(arguments), dict):
            return Raw(arguments.encode())
    except (msgspec.DecodeError, RecursionError):
        # The answer may have been cut within the arguments.
        pass
    return Raw(b"{}")
