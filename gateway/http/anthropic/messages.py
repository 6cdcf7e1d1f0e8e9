"""Anthropic's routes: POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.config.model import Model
from gateway.http.anthropic.bodies import (
    AnthropicConversation,
    chat_messages,
    picture_sources,
    references,
    unread,
)
from gateway.http.anthropic.writer import AnthropicMessage, Count, MessageFormat
from gateway.http.generation.generation import (
    LARGEST_COUNT,
    GenerationBody,
    Probability,
    StopSequence,
    Tokens,
    check_number,
    counting,
    encode_arguments,
    generate_message,
    thinks,
    with_defaults,
    with_system,
)
from gateway.http.generation.model_call import ModelCall
from gateway.http.generation.pictures import named
from gateway.http.generation.prefill import goes_on
from gateway.http.generation.tools import (
    ChosenTool,
    FunctionBody,
    NamedFunction,
    ToolBody,
    ToolChoiceBody,
    replaced,
    tools_of,
)
from gateway.http.passing.servers import passing
from gateway.http.wire.answer import MESSAGE_EVENTS, CountFormat
from gateway.http.wire.bodies import ABSENT, BodyPart, given, read_json
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import EVENT_STREAM, GENERATES, Operation, Routes
from protocol.requests import ChatPrompt, Constraint, Generate, Tools

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
    return {each.name: each.function for each in tools if each.is_own and each.defer_loading}


def foreign_types(tools: Iterable[ToolDefinition]) -> set[str]:
    """The types of Anthropic's server tools among `tools`. Server tools can't run here."""
    return {named(each.type or "", "tool") for each in tools if not each.is_own}


def callable_tools(
    tools: Collection[ToolDefinition], choice: AnthropicToolChoice | None, referred: Collection[str]
) -> Tools | None:
    """The tools that the model may call. A deferred tool is left out unless its name is in
    `referred`. A choice is ignored if it names a server tool, or if all tools are server tools.

    Raises:
        Refusal: a name or a schema is invalid, or the choice names a tool that is left out.
    """
    own = [each for each in tools if each.is_own]
    offered = [each for each in own if not each.defer_loading or each.name in referred]
    parallel = choice is None or not choice.disable_parallel_tool_use
    foreign = {each.name for each in tools if not each.is_own}
    if choice is not None and (choice.name in foreign or (foreign and not own)):
        choice = None
    return tools_of(
        [ToolBody(each.function, "function") for each in offered],
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
    generation = GenerationBody(
        model=body.model,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
    )
    call, generate, left_out = await _read(http_request, body, generation)
    requests = call.requests(generation, [generate], "messages")
    return call.answer(
        requests,
        MessageFormat(call.model.id, requests[0]),
        stream=bool(body.stream),
        framing=MESSAGE_EVENTS,
        left_out=left_out,
    )


@routes.post(
    "/v1/messages/count_tokens",
    Operation(
        "Count the tokens of a conversation", body=CountBody, answer=Count, refusals=GENERATES
    ),
)
@passing
async def count_tokens(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, CountBody)
    generation = GenerationBody(model=body.model)
    call, generate, left_out = await _read(http_request, body, generation)
    requests = call.requests(generation, [counting(generate)], "messages")
    form = CountFormat(lambda usage: msgspec.json.encode(Count(usage.prompt_tokens)))
    return call.answer(requests, form, left_out=left_out)


async def _read(
    http_request: HttpRequest, body: CountBody, generation: GenerationBody
) -> tuple[ModelCall, Generate, set[str]]:
    """The call, the message for a worker, and names for the parts that the model doesn't get."""
    call = ModelCall(http_request, body.model)
    check_number(len(body.messages))
    sources = await call.beside_the_loop(picture_sources, body) if call.vision else []
    pictures = await call.read_pictures(sources)
    generate, left_out = await call.beside_the_loop(
        _generate, body, generation, call.model, pictures
    )
    return call, generate, left_out


def _generate(
    body: CountBody, generation: GenerationBody, model: Model, pictures: Sequence[bytes]
) -> tuple[Generate, set[str]]:
    """The message for a worker, and names for the parts that the model doesn't get."""
    vision = model.settings.pictures
    tools = body.tools or []
    left_out = foreign_types(tools) | unread(body, vision=vision)
    own = replaced(each.name for each in tools if each.is_own)
    left_out |= {named(name, "tool") for name in own}
    for name in ("mcp_servers", "container"):
        if given(raw := getattr(body, name)) and bytes(raw) != b"[]":
            left_out.add(name)
    thinking = None if body.thinking is None else body.thinking.type != "disabled"
    effort = None if body.output_config is None else body.output_config.effort
    arguments = encode_arguments(model.settings.template_arguments, thinking, effort)
    messages = chat_messages(body, pictures, vision=vision, deferred=deferred(tools))
    open_ = goes_on(messages, "messages")
    if open_ and messages[-1].content != messages[-1].content.rstrip():
        raise invalid(
            "messages: the last message is the assistant's, and its text ends with white space, "
            "from which no answer goes on well: leave the white space out.",
            "messages",
        )
    prompt = ChatPrompt(with_system(messages, model.settings), arguments, open_)
    generate = msgspec.structs.replace(
        generate_message(with_defaults(generation, model.settings), prompt, generation.limit),
        parsed=True,
        tools=callable_tools(tools, body.tool_choice, references(body)),
        constraint=_constraint(body),
        reasoning_tokens=body.thinking and body.thinking.budget_tokens,
        thinks=thinks(arguments),
    )
    return generate, left_out


def _constraint(body: CountBody) -> Constraint | None:
    config = body.output_config
    wanted = (config and config.format) or body.output_format
    if wanted is None or not given(wanted.schema_):
        return None
    return Constraint("json_schema", bytes(wanted.schema_).decode())
