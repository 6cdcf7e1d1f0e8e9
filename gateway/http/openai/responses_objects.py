"""OpenAI's response object, and the items of its output. Reads the arguments of calls."""

from __future__ import annotations

import json
import re
import time
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.http.generation.generation_body import limit_of
from gateway.http.openai.chat_writer import TokenLogprobBody
from gateway.http.openai.diagnostics import CacheDiagnostics
from gateway.http.openai.responses_bodies import (
    ReasoningConfig,
    ResponseBody,
    ResponseToolChoice,
    TextConfig,
    TextFormat,
)
from gateway.http.openai.responses_items import Tool, runs_here
from gateway.http.wire.bodies import ABSENT, given
from gateway.mailbox.entry import Status
from gateway.system.refusal import Refusal
from protocol.answers import Usage

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class OutputText(Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any] = []
    logprobs: list[TokenLogprobBody] = []


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    text: str


class _Item(Struct, tag_field="type"):
    id: str
    status: ItemStatus


class MessageItem(_Item, tag="message"):
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class ReasoningItem(_Item, tag="reasoning"):
    """The reasoning is the content. There is no summary of it."""

    content: list[ReasoningText]
    summary: list[Any] = []
    encrypted_content: str | UnsetType = UNSET


class _CallItem(_Item):
    call_id: str


class CallItem(_CallItem, tag="function_call"):
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class CustomCallItem(_CallItem, tag="custom_tool_call"):
    name: str
    input: str
    namespace: str | UnsetType = UNSET


class SearchCallItem(_CallItem, tag="tool_search_call"):
    """A call that has the client search among its tools."""

    arguments: dict[str, Any]
    execution: Literal["client"] = "client"


class ShellAction(Struct, tag_field="type", tag="exec"):
    command: list[str]
    env: dict[str, str] = {}
    timeout_ms: int | None = None
    working_directory: str | None = None
    user: str | None = None


class ShellCallItem(_CallItem, tag="local_shell_call"):
    action: ShellAction


AnyCallItem: TypeAlias = CallItem | CustomCallItem | SearchCallItem | ShellCallItem


class CompactionItem(Struct, tag_field="type", tag="compaction"):
    """A summary of the items before it. It is encoded, not encrypted."""

    id: str
    encrypted_content: str


OutputItem: TypeAlias = MessageItem | ReasoningItem | AnyCallItem | CompactionItem


class InputTokensDetails(Struct):
    """`cached_tokens` of the input were in the prompt cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct):
    """`reasoning_tokens` of the output are reasoning and its tags."""

    reasoning_tokens: int


class ResponseUsage(Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> ResponseUsage:
        return cls(
            usage.prompt_tokens,
            InputTokensDetails(usage.cached_tokens),
            usage.completion_tokens,
            OutputTokensDetails(usage.reasoning_tokens),
            usage.prompt_tokens + usage.completion_tokens,
        )


class ResponseErrorBody(Struct):
    """`code` is OpenAI's nearest code, `type` the code of this server."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str
    type: str
    param: str | None

    @classmethod
    def of(cls, refusal: Refusal) -> ResponseErrorBody:
        code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"] = "server_error"
        if refusal.status == 429:
            code = "rate_limit_exceeded"
        elif refusal.status < 500:
            code = "invalid_prompt"
        return cls(code, refusal.message, refusal.code, refusal.param)


class IncompleteDetails(Struct):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseObject(Struct, kw_only=True):
    """A response: the parameters of the request, and the answer. It has all fields that OpenAI or
    Open Responses requires; fields with a default there are never null.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    background: bool
    frequency_penalty: float = 0.0
    completed_at: int | None = None
    error: ResponseErrorBody | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None = None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    presence_penalty: float = 0.0
    previous_response_id: str | None
    prompt_cache_diagnostics: CacheDiagnostics | UnsetType = UNSET
    prompt_cache_key: str | None = None
    reasoning: Raw = ABSENT
    safety_identifier: str | None = None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: Raw
    tool_choice: Raw
    tools: Raw
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None = None


def decode(body: bytes) -> ResponseObject:
    """Decode a response object that a gateway has encoded."""
    return msgspec.json.decode(body, type=ResponseObject)


def hexadecimal(response_id: str) -> str:
    """The part of a response's id that the ids of its items contain, too."""
    return response_id.removeprefix("resp_")


def skeleton(body: ResponseBody, model_id: str, response_id: str) -> ResponseObject:
    """The response to a body, still without output."""
    return ResponseObject(
        id=response_id,
        created_at=int(time.time()),
        status="in_progress",
        background=False,
        frequency_penalty=body.frequency_penalty or 0.0,
        instructions=body.instructions,
        max_output_tokens=limit_of(body.max_output_tokens),
        metadata=body.metadata or {},
        model=model_id,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        presence_penalty=body.presence_penalty or 0.0,
        previous_response_id=body.previous_response_id,
        reasoning=_raw(body.reasoning or ReasoningConfig()),
        store=body.stored,
        temperature=1.0 if body.temperature is None else body.temperature,
        text=_text(body),
        tool_choice=_tool_choice(body),
        tools=shown_tools(body),
        top_logprobs=body.top_logprobs or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        truncation=body.truncation or "disabled",
    )


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
    choice = body.choice
    if isinstance(choice, ResponseToolChoice) and choice.type == "allowed_tools":
        choice = msgspec.structs.replace(choice, mode=choice.mode or "auto")
    return _raw(choice or "auto")


def shown_tools(body: ResponseBody) -> Raw:
    """The tools of a body as the response shows them. Tools that run at OpenAI are left out."""
    return _raw([_shown(tool) for tool in body.tools or () if runs_here(tool)])


def _shown(tool: Tool) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": tool.type, "description": tool.description}
    match tool.type:
        case "function":
            # Without `strict` a schema is not enforced.
            shown |= {"parameters": tool.parameters, "strict": bool(tool.strict)}
        case "custom":
            asked = tool.format if given(tool.format) else {"type": "text"}
            shown |= {"description": tool.description or "", "format": asked}
        case "namespace":
            members = [_shown(member) for member in tool.tools or () if runs_here(member)]
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


_BEGIN: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_WHOLE_CHARACTERS: Final = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
# The first half of a surrogate pair at the end. The second half may follow.
_HALF: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")
_HALF_LENGTH: Final = 6


def arguments_of(arguments: str) -> dict[str, Any]:
    """The arguments of a call. Empty: the text is no JSON object."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def action_of(arguments: str) -> ShellAction:
    """The action of a shell call. A command that is a single text is run by bash."""
    action = arguments_of(arguments)
    if isinstance(action.get("command"), str):
        action["command"] = ["bash", "-lc", action["command"]]
    try:
        return msgspec.convert({**action, "type": "exec"}, ShellAction)
    except msgspec.ValidationError:
        return ShellAction([])


class WrittenInput:
    """Extracts the input of a custom tool from the arguments of its call, which come in pieces.
    `text` is the input so far.
    """

    def __init__(self) -> None:
        self.text = ""
        self._arguments = ""
        self._at: int | None = None

    def add(self, piece: str) -> str:
        """The text that `piece`, the next piece of the arguments, adds to the input."""
        self._arguments += piece
        if self._at is None:
            if (begin := _BEGIN.match(self._arguments)) is None:
                return ""
            self._at = begin.end()
        characters = _WHOLE_CHARACTERS.match(self._arguments, self._at)
        assert characters is not None
        written = characters[0]
        if _HALF.search(written):
            written = written[:-_HALF_LENGTH]
        self._at += len(written)
        return self._append(_encodable(json.loads(f'"{written}"', strict=False)))

    def end(self) -> str:
        """The rest of the input. If the arguments are no object with an `input`, the input is the
        only value of the arguments, if that is a text, or else the arguments themselves.
        """
        whole = _input(self._arguments)
        if whole is None:
            whole = self._arguments if self._at is None else self.text
        whole = _encodable(whole)
        return self._append(whole.removeprefix(self.text)) if whole.startswith(self.text) else ""

    def _append(self, text: str) -> str:
        self.text += text
        return text


def _input(arguments: str) -> str | None:
    """The input in complete arguments. None: the arguments were cut, or are no JSON."""
    try:
        value: Any = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        texts = [text for text in value.values() if isinstance(text, str)]
        if isinstance(value.get("input"), str):
            return str(value["input"])
        if len(value) == len(texts) == 1:
            return texts[0]
    return value if isinstance(value, str) else arguments


def _encodable(text: str) -> str:
    """The text without lone surrogates."""
    return text.encode("utf-8", "replace").decode()
