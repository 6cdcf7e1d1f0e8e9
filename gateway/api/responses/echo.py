"""What a body asks for, as the answer repeats it: with every field that strict decoders want."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from gateway.api.bodies import given
from gateway.api.responses.bodies import (
    FunctionTool,
    ReasoningConfig,
    ResponseBody,
    TextConfig,
    TextFormat,
    ToolChoice,
)


def echoed_reasoning(body: ResponseBody) -> Raw:
    return _raw(body.reasoning or ReasoningConfig())


def echoed_text(body: ResponseBody) -> Raw:
    text = body.text or TextConfig()
    shown = text.format or TextFormat("text")
    asked: dict[str, Any] = {"type": shown.type}
    if shown.type == "json_schema":
        asked |= {
            "name": shown.name or "",
            "description": shown.description,
            "schema": shown.schema_,
            "strict": bool(shown.strict),
        }
    return _raw({"format": asked, "verbosity": text.verbosity or "medium"})


def echoed_choice(body: ResponseBody) -> Raw:
    choice = body.tool_choice
    if isinstance(choice, ToolChoice) and choice.type == "allowed_tools":
        choice = msgspec.structs.replace(choice, mode=choice.mode or "auto")
    return _raw(choice or "auto")


def echoed_tools(body: ResponseBody) -> Raw:
    return _raw([_shown(each) for each in body.tools or ()])


def _shown(tool: FunctionTool) -> dict[str, Any]:
    return {
        "type": tool.type,
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters if given(tool.parameters) else None,
        # A schema that says nothing of strictness is a wish here.
        "strict": bool(tool.strict),
    }


def _raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))
