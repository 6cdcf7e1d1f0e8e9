"""Anthropic's routes: POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.config.model import Model
from gateway.http.anthropic.bodies import AnthropicConversation, converse
from gateway.http.anthropic.diagnostics import DiagnosticsOption, diagnose
from gateway.http.anthropic.writer import AnthropicMessage, Count, MessageFormat
from gateway.http.generation.conversation import ConversationBuilder, check_number
from gateway.http.generation.generation_body import (
    LARGEST_COUNT,
    GenerationBody,
    Probability,
    StopSequence,
    Tokens,
    encode_arguments,
    with_defaults,
)
from gateway.http.generation.model_call import ModelCall
from gateway.http.generation.pictures import named
from gateway.http.generation.text_request import (
    RequestDraft,
    TextRequest,
    counting,
    draft_chat,
    request_text,
)
from gateway.http.generation.tools import (
    ChosenTool,
    FunctionBody,
    NamedFunction,
    ToolBody,
    ToolChoiceBody,
    replaced,
    tools_of,
)
from gateway.http.passing.pass_on import passing
from gateway.http.wire.answer import MESSAGE_EVENTS, CountFormat
from gateway.http.wire.bodies import ABSENT, BodyPart, given, read_json
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import EVENT_STREAM, GENERATES, Operation, Routes
from protocol.requests import Constraint, Tools

routes = Routes("Anthropic")


class ToolDefinition(BodyPart):
    """A tool. The client's own tools have no type or "custom"; Anthropic's server tools have other
    types, and some have no name. A deferred tool is described to the model only where a result
    refers to it.
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


class AnthropicToolChoice(Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def deferred(tools: Iterable[ToolDefinition]) -> dict[str, FunctionBody]:
    """The functions of the deferred tools, by name."""
    return {tool.name: tool.function for tool in tools if tool.is_own and tool.defer_loading}


def foreign_types(tools: Iterable[ToolDefinition]) -> set[str]:
    """The types of Anthropic's server tools among `tools`. Server tools can't run here."""
    return {named(tool.type or "", "tool") for tool in tools if not tool.is_own}


def callable_tools(
    tools: Collection[ToolDefinition], choice: AnthropicToolChoice | None, referred: Collection[str]
) -> Tools | None:
    """The tools that the model may call. A deferred tool is left out unless its name is in
    `referred`. A choice is ignored if it names a server tool, or if all tools are server tools.

    Raises:
        Refusal: a name or a schema is invalid, or the choice names a tool that is left out.
    """
    clients = [tool for tool in tools if tool.is_own]
    offered = [client for client in clients if not client.defer_loading or client.name in referred]
    parallel = choice is None or not choice.disable_parallel_tool_use
    foreign = {definition.name for definition in tools if not definition.is_own}
    if choice is not None and (choice.name in foreign or (foreign and not clients)):
        choice = None
    return tools_of(
        [ToolBody(tool_definition.function, "function") for tool_definition in offered],
        _choice(choice),
        parallel=parallel,
        mentioned=deferred(offered),
    )


def _choice(choice: AnthropicToolChoice | None) -> ToolChoiceBody | None:
    match choice:
        case None:
            return None
        case AnthropicToolChoice("any"):
            return "required"
        case AnthropicToolChoice("tool", str() as name):
            return ChosenTool("function", NamedFunction(name))
        case AnthropicToolChoice("auto" | "none" as mode):
            return mode
        case _:
            raise invalid(
                "tool_choice.name is missing: with type tool, send a name.", "tool_choice.name"
            )


class ThinkingOption(Struct):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1, le=LARGEST_COUNT)] | None = None


class OutputFormat(Struct, rename={"schema_": "schema"}):
    schema_: Raw
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(Struct):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountBody(AnthropicConversation, kw_only=True):
    """The fields of which the prompt is made."""

    model: str
    tools: list[ToolDefinition] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingOption | None = None
    output_config: OutputConfig | None = None
    # The older name of the field output_config.format.
    output_format: OutputFormat | None = None
    # Fields of features that run on Anthropic's servers.
    mcp_servers: Raw = ABSENT
    container: Raw = ABSENT


class MessagesBody(CountBody, kw_only=True):
    max_tokens: Tokens
    stream: bool | None = None
    stop_sequences: Annotated[list[StopSequence], Meta(max_length=16)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=0, le=LARGEST_COUNT)] | None = None
    diagnostics: DiagnosticsOption | None = None
    # An addition of this gateway.
    repetition_stop: bool | None = None


@routes.post(
    "/v1/messages",
    Operation(
        "Answer a conversation",
        body=MessagesBody,
        answer=AnthropicMessage,
        stream=EVENT_STREAM,
        refusals=GENERATES,
    ),
)
@passing
async def create_message(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, MessagesBody)
    parameters = GenerationBody(
        model=body.model,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        repetition_stop=body.repetition_stop,
    )
    asked = await _request(http_request, body, parameters)
    diagnosed = functools.partial(diagnose, asked, body.diagnostics)
    form = MessageFormat(asked.call.model.id, asked.requests[0], diagnosed)
    return asked.submit(form, stream=bool(body.stream), framing=MESSAGE_EVENTS)


@routes.post(
    "/v1/messages/count_tokens",
    Operation(
        "Count the tokens of a conversation", body=CountBody, answer=Count, refusals=GENERATES
    ),
)
@passing
async def count_tokens(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, CountBody)
    parameters = GenerationBody(model=body.model)
    asked = await _request(http_request, body, parameters, counts=True)
    return asked.submit(CountFormat(lambda usage: msgspec.json.encode(Count(usage.prompt_tokens))))


async def _request(
    http_request: HttpRequest, body: CountBody, parameters: GenerationBody, *, counts: bool = False
) -> TextRequest:
    call = ModelCall(http_request, body.model)
    check_number(len(body.messages))
    return await request_text(call, functools.partial(_draft, body, parameters, counts), "messages")


def _draft(body: CountBody, parameters: GenerationBody, counts: bool, model: Model) -> RequestDraft:
    """With `counts` the worker only counts the tokens of the prompt."""
    tools = body.tools or []
    conversation = ConversationBuilder(vision=model.settings.pictures)
    referred = converse(body, conversation, deferred(tools))
    goes_on = conversation.goes_on("messages")
    last = conversation.messages[-1].content if goes_on else ""
    if last != last.rstrip():
        raise invalid(
            "messages: the last message is the assistant's, and its text ends with white space, "
            "from which no answer goes on well: leave the white space out.",
            "messages",
        )
    conversation.begin_with(model.settings.system)
    conversation.left_out |= _left_out(body)
    thinking = None if body.thinking is None else body.thinking.type != "disabled"
    effort = None if body.output_config is None else body.output_config.effort
    arguments = encode_arguments(model.settings.template_arguments, thinking, effort)
    drafted = draft_chat(
        with_defaults(parameters, model.settings),
        conversation,
        arguments,
        parameters.limit,
        goes_on=goes_on,
        tools=callable_tools(tools, body.tool_choice, referred),
        constraint=_constraint(body),
        reasoning_tokens=body.thinking and body.thinking.budget_tokens,
    )
    return counting(drafted) if counts else drafted


def _left_out(body: CountBody) -> set[str]:
    """Names for the tools and the fields that the model doesn't get."""
    tools = body.tools or []
    names = foreign_types(tools)
    names |= {named(name, "tool") for name in replaced(tool.name for tool in tools if tool.is_own)}
    for name in ("mcp_servers", "container"):
        if given(raw := getattr(body, name)) and bytes(raw) != b"[]":
            names.add(name)
    return names


def _constraint(body: CountBody) -> Constraint | None:
    config = body.output_config
    wanted = (config and config.format) or body.output_format
    if wanted is None or not given(wanted.schema_):
        return None
    return Constraint("json_schema", bytes(wanted.schema_).decode())
