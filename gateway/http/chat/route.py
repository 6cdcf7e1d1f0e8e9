"""POST /v1/chat/completions."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.config.model import Model
from gateway.http.answer import server_sent_event
from gateway.http.bodies import json_response, read_json, read_limit, reads_newest_first
from gateway.http.chat.bodies import (
    ChatMessageBody,
    TemplateBody,
    ToolBody,
    ToolChoiceBody,
    chat_messages,
    left_out,
    picture_sources,
    template_arguments,
    thinks,
    tools_of,
)
from gateway.http.chat.writer import ChatChunk, ChatCompletion, ChatFormat
from gateway.http.errors import envelope, invalid
from gateway.http.generation import (
    LARGEST_COUNT,
    check_generation,
    check_number,
    constraint_of,
    generate_message,
)
from gateway.http.kept import (
    Followed,
    accept,
    mailbox_of,
    name_of,
    new_entry,
    not_found,
    owner_of,
)
from gateway.http.model_call import ModelCall, check_mailbox
from gateway.http.openapi import EVENT_STREAM, GENERATES, Described, Operation
from gateway.http.parameters import refusing
from gateway.mailbox.entry import AnswerOutcome, MailboxEntry, Name
from gateway.requests.choices import Format
from gateway.requests.request import Request
from gateway.requests.share import share_of
from gateway.system.refusal import Refusal
from protocol.requests import ChatPrompt, Generate

_PATH = "/v1/chat/completions"
_RETRY_AFTER_S = 1
_MESSAGES = "/messages"


class ChatForm(Struct):
    """What a writer is made from, also after a crash."""

    model_id: str
    created: int
    include_usage: bool
    include_reasoning: bool


class PendingBody(Struct):
    """A chat completion that isn't there yet."""

    id: str
    created: int
    model: str
    object: str = "chat.completion"
    status: str = "in_progress"
    choices: list[Any] = []


def form_of(told: ChatForm, first: Request) -> ChatFormat:
    return ChatFormat(
        told.model_id,
        first,
        include_usage=told.include_usage,
        include_reasoning=told.include_reasoning,
        created=told.created,
    )


class ChatFamily:
    def form(self, form: bytes, request: Request, first_number: int) -> Format:
        return form_of(msgspec.json.decode(form, type=ChatForm), request)

    def failure(self, body: bytes, refusal: Refusal) -> AnswerOutcome:
        return AnswerOutcome("failed", refusal.status, envelope(refusal, _PATH))

    def cancellation(self, body: bytes) -> AnswerOutcome:
        # Only who deletes it cancels it.
        return self.failure(body, Refusal("not_found", "The answer was deleted."))

    def first_events(self, body: bytes, number: int) -> bytes:
        return b""

    def last_event(self, outcome: AnswerOutcome, number: int) -> bytes:
        return b"event: error\n" + server_sent_event(outcome.body)


async def keep(
    call: ModelCall, requests: Sequence[Request], form: ChatForm, *, stream: bool
) -> Followed:
    """The answer, which is made and kept whether or not its client stays.

    Raises:
        Refusal: it can't be written down, or its id is taken.
    """
    entry = new_entry(call, f"chatcmpl-{requests[0].id}", "chat")
    # It doesn't wait in the mailbox, but with everybody else.
    entry.status, entry.attempts = "in_progress", 1
    body = msgspec.json.encode(PendingBody(entry.id, form.created, form.model_id))
    job = await accept(call, entry, requests, msgspec.json.encode(form), body, streams=stream)
    return Followed(job, stream=stream, headers={"x-mailbox-id": entry.id})


async def retrieve(request: HttpRequest) -> Response:
    """A whole chat completion, or how it failed; 202 until it is there."""
    name = name_of(request)
    found = await mailbox_of(request).find(name, share_of(request.scope))
    if found is None or found.entry.api != "chat":
        raise await _no_messages(request, name) or not_found("kept chat completion", name[1])
    headers = {}
    if found.entry.pending:
        headers["retry-after"] = str(_RETRY_AFTER_S)
    elif found.http_status != 200:
        # It is what came of it, however often it is fetched.
        headers["x-should-retry"] = "false"
    body = _with_status(found.entry, found.body)
    return Response(
        body, status_code=found.http_status, headers=headers, media_type="application/json"
    )


async def _no_messages(request: HttpRequest, name: Name) -> Refusal | None:
    """For who asks what a chat answered, at a path that could be an id as well."""
    owner, asked = name
    kept_id = asked.removesuffix(_MESSAGES)
    if kept_id == asked:
        return None
    found = await mailbox_of(request).find((owner, kept_id), share_of(request.scope))
    if found is None or found.entry.api != "chat":
        return None
    return Refusal(
        "not_found",
        f"The messages of {kept_id[:200]!r} aren't kept, only its answer: "
        f"GET {_PATH}/{kept_id[:200]}.",
        param="id",
    )


async def list_kept(request: HttpRequest) -> Response:
    """The client's own, oldest first: as they are, or with an `error`."""
    count = read_limit(request)
    newest_first = reads_newest_first(request, default=False)
    mailbox, owner = mailbox_of(request), owner_of(request)
    after = request.query_params.get("after")
    share = share_of(request.scope)
    entries = await mailbox.entries(
        owner, "chat", after, count + 1, share, newest_first=newest_first
    )
    data = [msgspec.Raw(_listed(*each)) for each in entries[:count]]
    ids = [entry.id for entry, _ in entries[:count]]
    listed = {
        "object": "list",
        "data": data,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": len(entries) > count,
    }
    return json_response(listed)


async def delete(request: HttpRequest) -> Response:
    """Whether it is there already or on its way."""
    name = name_of(request)
    mailbox = mailbox_of(request)
    found = await mailbox.find(name, share_of(request.scope))
    if found is None or found.entry.api != "chat" or not await mailbox.delete(name):
        raise not_found("kept chat completion", name[1])
    answer = {"id": name[1], "object": "chat.completion.deleted", "deleted": True}
    return json_response(answer)


def _with_status(entry: MailboxEntry, body: bytes) -> bytes:
    if not entry.pending:
        return body
    pending = msgspec.json.decode(body, type=PendingBody)
    return msgspec.json.encode(msgspec.structs.replace(pending, status=entry.status))


def _listed(entry: MailboxEntry, body: bytes) -> bytes:
    if entry.status != "failed":
        return _with_status(entry, body)
    failed = PendingBody(entry.id, int(entry.created_at), entry.model, status="failed")
    error = msgspec.json.decode(body, type=dict[str, msgspec.Raw])["error"]
    return msgspec.json.encode({**msgspec.structs.asdict(failed), "error": error})


_LIST: Final = Operation(summary="Chats that are kept", tag="OpenAI", answer=dict)
# What came of one is told with the status that it would have had.
_RETRIEVE: Final = Operation(
    summary="A chat that is kept", tag="OpenAI", answer=dict, refusals=(*GENERATES, "not_found")
)
_DELETE: Final = Operation(
    summary="Delete a chat", tag="OpenAI", answer=dict, refusals=("not_found",)
)


@refusing("chat")
class ChatBody(TemplateBody, kw_only=True):
    messages: Annotated[list[ChatMessageBody], Meta(min_length=1)]
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
    check_number(len(body.messages))
    check_generation(body, "chat")
    call = ModelCall(http_request, body.model)
    find = functools.partial(picture_sources, body.messages, looks=call.looks)
    sources = await call.beside_the_loop(find)
    unseen = set() if call.looks else await call.beside_the_loop(left_out, body.messages)
    pictures = await call.read_pictures(sources)
    generate = await call.beside_the_loop(_generate, body, call.model, pictures)
    requests = call.requests(body, [generate], "messages")
    told = ChatForm(
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
        left_out=unseen,
    )


def _generate(body: ChatBody, model: Model, pictures: Sequence[bytes]) -> Generate:
    arguments = template_arguments(body, model.settings.template_arguments)
    messages = chat_messages(body.messages, pictures, looks=model.settings.pictures)
    prompt = ChatPrompt(messages, arguments)
    alternatives = max(0, body.top_logprobs or 0)
    if alternatives and not body.logprobs:
        raise invalid("top_logprobs: it needs logprobs to be true.", "top_logprobs")
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
    events=ChatChunk,
    stream=EVENT_STREAM,
    refusals=GENERATES,
)

routes = [
    Described("/v1/chat/completions", create_chat_completion, _CHAT, method="POST"),
    Described(_PATH, list_kept, _LIST),
    Described(f"{_PATH}/{{id:id}}", retrieve, _RETRIEVE),
    Described(f"{_PATH}/{{id:id}}", delete, _DELETE, method="DELETE"),
]
