"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.answer import Answer
from gateway.http.bodies import ABSENT, beside_the_loop, given, read_json
from gateway.http.callers import caller_of
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
from gateway.http.openapi.operation import EVENT_STREAM, GENERATES, Described, Operation
from gateway.http.pictures.reader import PictureReader
from gateway.http.sampling import (
    LARGEST_COUNT,
    GenerationBody,
    StopSequence,
    Tokens,
    generate_message,
    new_requests,
)
from gateway.models.choices import submit_all
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.requests.share import share_of
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


async def create_message(request: HttpRequest) -> Response:
    body = await read_json(request, MessagesBody)
    generation = GenerationBody(
        model=body.model,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
    )
    return await _answer(request, body, generation, stream=bool(body.stream))


async def count_tokens(request: HttpRequest) -> Response:
    body = await read_json(request, CountBody)
    return await _answer(request, body, GenerationBody(model=body.model), count=True)


async def _answer(
    request: HttpRequest,
    body: CountBody,
    generation: GenerationBody,
    *,
    stream: bool = False,
    count: bool = False,
) -> Response:
    fleet: Fleet = request.app.state.fleet
    compartment = fleet.roster.find(body.model, caller_of(request))
    check_number(body)
    body_bytes: int = request.state.body_bytes
    looks = compartment.model.settings.pictures
    sources = await beside_the_loop(body_bytes, picture_sources, body) if looks else []
    reader: PictureReader = request.app.state.pictures
    share = share_of(request.scope)
    pictures = await reader.read(sources, fleet.settings.gateway, share)
    generate, left_out = await beside_the_loop(
        body_bytes, _generate, body, generation, compartment, pictures, count
    )
    requests = new_requests(request, fleet, generation, [generate], "messages")
    submit_all(fleet, compartment, requests)
    form = CountFormat(Count) if count else MessageFormat(compartment.model.id, requests[0])
    headers = left_out_header(left_out)
    return Answer(
        compartment, requests, form, stream=stream, framing=MESSAGE_EVENTS, headers=headers
    )


def _generate(
    body: CountBody,
    generation: GenerationBody,
    compartment: Compartment,
    pictures: Sequence[bytes],
    count: bool,
) -> tuple[Generate, set[str]]:
    """And what is left out of it."""
    looks = compartment.model.settings.pictures
    tools = body.tools or []
    left_out = foreign_types(tools) | unread(body, looks=looks)
    for name in ("mcp_servers", "container"):
        if given(raw := getattr(body, name)) and bytes(raw) != b"[]":
            left_out.add(name)
    arguments: dict[str, Any] = dict(compartment.model.settings.template_arguments)
    if body.thinking is not None:
        arguments["enable_thinking"] = body.thinking.type != "disabled"
    if body.output_config is not None and body.output_config.effort is not None:
        arguments["reasoning_effort"] = body.output_config.effort
    told = msgspec.json.encode(arguments).decode() if arguments else ""
    messages = chat_messages(body, pictures, looks=looks, deferred=deferred(tools))
    prompt = ChatPrompt(messages, told)
    generate = msgspec.structs.replace(
        # Nothing is computed for an answer of no token.
        generate_message(generation, prompt, 0 if count else generation.limit),
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
