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

from gateway.config.model import Model
from gateway.http.bodies import read_json
from gateway.http.chat.kept import Form, form_of, keep
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
from gateway.http.chat.writer import ChatCompletion, Chunk
from gateway.http.left_out import left_out_header
from gateway.http.model_call import ModelCall, check_mailbox
from gateway.http.openapi.operation import EVENT_STREAM, GENERATES, Described, Operation
from gateway.http.sampling import LARGEST_COUNT, check_generation, generate_message
from gateway.http.structure import constraint_of
from gateway.http.supported import refusing
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


async def create_chat_completion(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, ChatBody)
    check_number(body.messages)
    check_generation(body, "chat")
    call = ModelCall(http_request, body.model)
    find = functools.partial(picture_sources, body.messages, looks=call.looks)
    sources = await call.beside_the_loop(find)
    unseen = set() if call.looks else await call.beside_the_loop(left_out, body.messages)
    pictures = await call.read_pictures(sources)
    generate = await call.beside_the_loop(_generate, body, call.model, pictures)
    requests = call.requests(body, [generate], "messages")
    told = Form(
        call.model.id,
        int(time.time()),
        body.include_usage,
        body.include_reasoning is not False,
    )
    stream = bool(body.stream)
    if check_mailbox(http_request):
        return await keep(call, requests, told, stream=stream)
    return call.answer(
        requests,
        form_of(told, requests[0]),
        stream=stream,
        answers_each=len(requests),
        headers=left_out_header(unseen),
    )


def _generate(body: ChatBody, model: Model, pictures: Sequence[bytes]) -> Generate:
    arguments = template_arguments(body, model.settings.template_arguments)
    messages = chat_messages(body.messages, pictures, looks=model.settings.pictures)
    prompt = ChatPrompt(messages, arguments)
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
