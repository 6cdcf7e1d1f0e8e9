"""POST /v1/chat/completions."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.answer import Answer
from gateway.http.bodies import beside_the_loop, read_json
from gateway.http.callers import caller_of
from gateway.http.chat.kept import Form, keep
from gateway.http.chat.kept import routes as kept_routes
from gateway.http.chat.messages import (
    MessageBody,
    chat_messages,
    check_number,
    left_out,
    picture_sources,
)
from gateway.http.chat.template import TemplateBody, template_arguments, thinks
from gateway.http.chat.tools import ToolBody, ToolChoiceBody, tools_of
from gateway.http.chat.writer import ChatCompletion, ChatFormat, Chunk
from gateway.http.left_out import left_out_header
from gateway.http.openapi.operation import EVENT_STREAM, GENERATES, Described, Operation
from gateway.http.pictures.reader import PictureReader, check_pictures
from gateway.http.sampling import (
    LARGEST_COUNT,
    check_generation,
    check_mailbox,
    generate_message,
    new_requests,
)
from gateway.http.structure import constraint_of
from gateway.http.supported import refusing
from gateway.models.choices import submit_all
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.requests.share import share_of
from gateway.system.refusal import Refusal
from protocol.prompts import ChatPrompt
from protocol.requests import Generate


@refusing("chat")
class ChatBody(TemplateBody, kw_only=True):
    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    tools: list[ToolBody] | None = None
    tool_choice: ToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    # -1 is mlx_lm.server's "none".
    top_logprobs: Annotated[int, Meta(ge=-1, le=20)] | None = None
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=LARGEST_COUNT)] | None = None
    include_reasoning: bool | None = None


async def create_chat_completion(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    body = await read_json(request, ChatBody)
    check_number(body.messages)
    check_generation(body, "chat")
    compartment = fleet.roster.find(body.model, caller_of(request))
    body_bytes: int = request.state.body_bytes
    reader: PictureReader = request.app.state.pictures
    looks = compartment.model.settings.pictures
    find = functools.partial(picture_sources, body.messages, looks=looks)
    sources = await beside_the_loop(body_bytes, find)
    unseen = set() if looks else await beside_the_loop(body_bytes, left_out, body.messages)
    check_pictures(sources, compartment.model)
    share = share_of(request.scope)
    pictures = await reader.read(sources, fleet.settings.gateway, share)
    generate = await beside_the_loop(body_bytes, _generate, body, compartment, pictures)
    requests = new_requests(request, fleet, body, [generate], "messages")
    stream = bool(body.stream)
    if check_mailbox(request):
        kept = Form(
            compartment.model.id,
            int(time.time()),
            body.include_usage,
            body.include_reasoning is not False,
        )
        return await keep(request, fleet, requests, kept, stream=stream)
    submit_all(fleet, compartment, requests)
    form = ChatFormat(
        compartment.model.id,
        requests[0],
        include_usage=body.include_usage,
        include_reasoning=body.include_reasoning is not False,
    )
    return Answer(
        compartment,
        requests,
        form,
        stream=stream,
        answers_each=len(requests),
        headers=left_out_header(unseen),
    )


def _generate(body: ChatBody, compartment: Compartment, pictures: Sequence[bytes]) -> Generate:
    arguments = template_arguments(body, compartment.model.settings.template_arguments)
    looks = compartment.model.settings.pictures
    prompt = ChatPrompt(chat_messages(body.messages, pictures, looks=looks), arguments)
    alternatives = max(0, body.top_logprobs or 0)
    if alternatives and not body.logprobs:
        raise Refusal(
            "invalid_request_error",
            "top_logprobs: it needs logprobs to be true.",
            param="top_logprobs",
        )
    budget = body.thinking_token_budget
    return msgspec.structs.replace(
        generate_message(body, prompt, body.limit),
        parsed=True,
        tools=tools_of(
            body.tools, body.tool_choice, parallel=body.parallel_tool_calls is not False
        ),
        constraint=constraint_of(body),
        # -1 is vLLM's "no budget".
        reasoning_tokens=None if budget == -1 else budget,
        logprobs=alternatives if body.logprobs else None,
        thinks=thinks(arguments),
    )


_CHAT: Final = Operation(
    summary="Answer a conversation",
    tag="OpenAI",
    body=ChatBody,
    answer=ChatCompletion,
    events=Chunk,
    stream=EVENT_STREAM,
    refusals=GENERATES,
)

routes = [
    Described("/v1/chat/completions", create_chat_completion, _CHAT, method="POST"),
    *kept_routes,
]
