"""What a body asks for, as the answer repeats it: with every field that strict decoders want."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from msgspec import Raw

from gateway.http.bodies import given
from gateway.http.responses.bodies import (
    ReasoningConfig,
    ResponseBody,
    TextConfig,
    TextFormat,
    ToolChoice,
)
from gateway.http.responses.shape import ResponseObject
from gateway.http.responses.tools import Tool, runs_here


def skeleton(body: ResponseBody, model_id: str, response_id: str) -> ResponseObject:
    """A response that nothing has come of yet."""
    return ResponseObject(
        id=response_id,
        created_at=int(time.time()),
        status="in_progress",
        background=False,
        frequency_penalty=body.frequency_penalty or 0.0,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=model_id,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        presence_penalty=body.presence_penalty or 0.0,
        previous_response_id=body.previous_response_id,
        reasoning=_reasoning(body),
        store=body.stored,
        temperature=1.0 if body.temperature is None else body.temperature,
        text=_text(body),
        tool_choice=_tool_choice(body),
        tools=shown_tools(body),
        top_logprobs=body.top_logprobs or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        truncation=body.truncation or "disabled",
    )


def _reasoning(body: ResponseBody) -> Raw:
    return _raw(body.reasoning or ReasoningConfig())


def _text(body: ResponseBody) -> Raw:
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


def _tool_choice(body: ResponseBody) -> Raw:
    choice = body.tool_choice
    if isinstance(choice, ToolChoice) and choice.type == "allowed_tools":
        choice = msgspec.structs.replace(choice, mode=choice.mode or "auto")
    return _raw(choice or "auto")


def shown_tools(body: ResponseBody) -> Raw:
    """Those that a model is told of: what runs at OpenAI was left out."""
    return _raw([_shown(each) for each in body.tools or () if runs_here(each)])


def _shown(tool: Tool) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": tool.type, "description": tool.description}
    match tool.type:
        case "function":
            # A schema that says nothing of strictness is a wish here.
            shown |= {"parameters": tool.parameters, "strict": bool(tool.strict)}
        case "custom":
            asked = tool.format if given(tool.format) else {"type": "text"}
            shown |= {"description": tool.description or "", "format": asked}
        case "namespace":
            members = [_shown(each) for each in tool.tools or () if runs_here(each)]
            shown |= {"description": tool.description or "", "tools": members}
        case "tool_search":
            return {**shown, "execution": "client", "parameters": tool.parameters}
        case _:
            return {"type": tool.type}
    if tool.defer_loading is not None:
        shown["defer_loading"] = tool.defer_loading
    return {**shown, "name": tool.name}


def _raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))
