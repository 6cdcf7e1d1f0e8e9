"""The tools of a conversation: which ones a model may call, and where it is told of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final, Literal

from msgspec import Raw, Struct

from gateway.http.bodies import ABSENT, Part
from gateway.http.chat.tools import (
    ChosenTool,
    FunctionBody,
    NamedFunction,
    ToolBody,
    ToolChoiceBody,
    tools_of,
)
from gateway.system.refusal import Refusal
from protocol.requests import Tools

_TYPE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ToolDefinition(Part):
    """A client's own tool; Anthropic's have another `type`, and some no name. One whose loading is
    deferred is told of where a result refers to it.
    """

    name: str = ""
    description: str | None = None
    input_schema: Raw = ABSENT
    type: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None

    @property
    def is_own(self) -> bool:
        return self.type in (None, "custom")

    @property
    def function(self) -> FunctionBody:
        return FunctionBody(self.name, self.description, self.input_schema, self.strict)


class ToolChoice(Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def deferred(tools: Iterable[ToolDefinition]) -> dict[str, FunctionBody]:
    """Those that are told of where they are referred to, by their names."""
    return {each.name: each.function for each in tools if each.is_own and each.defer_loading}


def foreign_types(tools: Iterable[ToolDefinition]) -> set[str]:
    """Of tools that nobody here can run, or describe to a model."""
    return {named(each.type or "", "tool") for each in tools if not each.is_own}


def named(kind: str, otherwise: str) -> str:
    """As it can stand in a header."""
    return kind if _TYPE.fullmatch(kind) else otherwise


def callable_tools(
    tools: Collection[ToolDefinition], choice: ToolChoice | None, referred: Collection[str]
) -> Tools | None:
    """What the model may call: nothing that is deferred, unless results have `referred` to it. A
    choice of what only Anthropic has is none.

    Raises:
        Refusal: a name or a schema can't be one, or a choice is of what isn't there.
    """
    own = [each for each in tools if each.is_own]
    told = [each for each in own if not each.defer_loading or each.name in referred]
    parallel = choice is None or not choice.disable_parallel_tool_use
    foreign = {each.name for each in tools if not each.is_own}
    if choice is not None and (choice.name in foreign or (foreign and not own)):
        choice = None
    return tools_of(
        [ToolBody(each.function, "function") for each in told],
        _choice(choice),
        parallel=parallel,
        mentioned=deferred(told),
    )


def _choice(choice: ToolChoice | None) -> ToolChoiceBody | None:
    match choice:
        case None:
            return None
        case ToolChoice("any"):
            return "required"
        case ToolChoice("tool", str() as name):
            return ChosenTool("function", NamedFunction(name))
        case ToolChoice("auto" | "none" as mode):
            return mode
        case _:
            raise Refusal(
                "invalid_request_error",
                "tool_choice.name is missing: with type tool, send which.",
                param="tool_choice.name",
            )
