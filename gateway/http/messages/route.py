"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.config.model import Model
from gateway.http.bodies import ABSENT, given, read_json
from gateway.http.count_format import CountFormat
from gateway.http.framing import MESSAGE_EVENTS
from gateway.http.left_out import left_out_header
from gateway.http.messages.bodies import (
    Conversation,
    chat_messages,
    check_number,
    picture_sources,
    references,
    unread,
)
from gateway.http.messages.tools import (
    ToolChoice,
    ToolDefinition,
    callable_tools,
    deferred,
    foreign_types,
)
from gateway.http.messages.writer import Count, Message, MessageFormat
from gateway.http.model_call import ModelCall
from gateway.http.openapi.operation import EVENT_STREAM, GENERATES, Described, Operation
from gateway.http.sampling import (
    LARGEST_COUNT,
    GenerationBody,
    StopSequence,
    Tokens,
    generate_message,
)
from protocol.prompts import ChatPrompt
from protocol.requests import Constraint, Generate


class ThinkingOption(Struct):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1, le=LARGEST_COUNT)] | None = None


class OutputFormat(Struct, rename={"schema_": "schema"}):
    schema_: Raw
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(Struct):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountBody(Conversation, kw_only=True):
    """What a prompt is made of."""

    model: str
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingOption | None = None
    output_config: OutputConfig | None = None
    # As it was named before.
    output_format: OutputFormat | None = None
    # What happens on Anthropic's machines.
    mcp_servers: Raw = ABSENT
    container: Raw = ABSENT


class MessagesBody(CountBody, kw_only=True):
    max_tokens: Tokens
    stream: bool | None = None
    stop_sequences: Annotated[list[StopSequence], Meta(max_length=16)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=LARGEST_COUNT)] | None = None


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
        headers=left_out_header(left_out),
    )


async def count_tokens(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, CountBody)
    # Nothing is computed for an answer of no token.
    generation = GenerationBody(model=body.model, max_tokens=0)
    call, generate, left_out = await _read(http_request, body, generation)
    requests = call.requests(generation, [generate], "messages")
    form = CountFormat(lambda usage: msgspec.json.encode(Count(usage.prompt_tokens)))
    return call.answer(requests, form, headers=left_out_header(left_out))


async def _read(
    http_request: HttpRequest, body: CountBody, generation: GenerationBody
) -> tuple[ModelCall, Generate, set[str]]:
    """Whom the body asks, what it asks, and what is left out of that."""
    call = ModelCall(http_request, body.model)
    check_number(body)
    sources = await call.beside_the_loop(picture_sources, body) if call.looks else []
    pictures = await call.read_pictures(sources)
    generate, left_out = await call.beside_the_loop(
        _generate, body, generation, call.model, pictures
    )
    return call, generate, left_out


def _generate(
    body: CountBody, generation: GenerationBody, model: Model, pictures: Sequence[bytes]
) -> tuple[Generate, set[str]]:
    """And what is left out of it."""
    looks = model.settings.pictures
    tools = body.tools or []
    left_out = foreign_types(tools) | unread(body, looks=looks)
    for name in ("mcp_servers", "container"):
        if given(raw := getattr(body, name)) and bytes(raw) != b"[]":
            left_out.add(name)
    arguments: dict[str, Any] = dict(model.settings.template_arguments)
    if body.thinking is not None:
        arguments["enable_thinking"] = body.thinking.type != "disabled"
    if body.output_config is not None and body.output_config.effort is not None:
        arguments["reasoning_effort"] = body.output_config.effort
    told = msgspec.json.encode(arguments).decode() if arguments else ""
    messages = chat_messages(body, pictures, looks=looks, deferred=deferred(tools))
    prompt = ChatPrompt(messages, told)
    generate = msgspec.structs.replace(
        generate_message(generation, prompt, generation.limit),
        parsed=True,
        tools=callable_tools(tools, body.tool_choice, references(body)),
        constraint=_constraint(body),
        reasoning_tokens=body.thinking and body.thinking.budget_tokens,
        thinks=arguments.get("enable_thinking") is not False,
    )
    return generate, left_out


def _constraint(body: CountBody) -> Constraint | None:
    config = body.output_config
    wanted = (config and config.format) or body.output_format
    if wanted is None or not given(wanted.schema_):
        return None
    return Constraint("json_schema", bytes(wanted.schema_).decode())


_MESSAGE: Final = Operation(
    summary="Answer a conversation",
    tag="Anthropic",
    body=MessagesBody,
    answer=Message,
    stream=EVENT_STREAM,
    refusals=GENERATES,
)
_COUNT: Final = Operation(
    summary="Count the tokens of a conversation",
    tag="Anthropic",
    body=CountBody,
    answer=Count,
    refusals=GENERATES,
)

routes = [
    Described("/v1/messages", create_message, _MESSAGE, method="POST"),
    Described("/v1/messages/count_tokens", count_tokens, _COUNT, method="POST"),
]
