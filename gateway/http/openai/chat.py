"""POST /v1/chat/completions."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.config.model import Model
from gateway.http.generation.conversation import ConversationBuilder, MessageText, check_number
from gateway.http.generation.generation_body import (
    LARGEST_COUNT,
    TemplateBody,
    check_generation,
    constraint_of,
    with_defaults,
)
from gateway.http.generation.model_call import ModelCall, check_mailbox
from gateway.http.generation.pictures import Source
from gateway.http.generation.supported_parameters import check_supported, refusing
from gateway.http.generation.text_request import RequestDraft, draft_chat, request_text
from gateway.http.generation.tools import ToolBody, ToolChoiceBody, replaced, tools_of
from gateway.http.openai.chat_writer import ChatChunk, ChatCompletion, ChatForm, ChatFormat
from gateway.http.openai.stored_answers import store_chat, stored_chat_routes
from gateway.http.passing.pass_on import passing
from gateway.http.wire.bodies import BodyPart, read_json
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import EVENT_STREAM, GENERATES, Operation, Routes
from protocol.requests import CalledTool

routes = Routes("OpenAI")

_PICTURES: Final = ("image_url", "input_image")


class ImageUrl(BodyPart):
    """OpenAI's `detail` is ignored."""

    url: str


@refusing("part")
class ContentPart(BodyPart):
    """A picture has the type image_url, or input_image as in OpenAI's Responses, where `image_url`
    is the address itself. Thoughts of an assistant have the type thinking or reasoning, and their
    text in a field of that name, or in `text`.
    """

    type: str
    text: str | None = None
    thinking: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None

    @property
    def thought(self) -> str | None:
        """What the assistant thought. None: this is no thought."""
        if self.type not in ("thinking", "reasoning"):
            return None
        return self.thinking or self.reasoning or self.text or ""

    @property
    def picture(self) -> str | None:
        """The address of a picture. None: this is no picture."""
        if self.type not in _PICTURES:
            return None
        return self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url


class ChatCalledFunction(BodyPart):
    name: str
    arguments: str | None = None


class ChatToolCallBody(BodyPart):
    function: ChatCalledFunction
    id: str | None = None
    type: Literal["function"] = "function"


@refusing("message")
class ChatMessageBody(BodyPart):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ChatToolCallBody] | None = None
    tool_call_id: str | None = None


def converse(bodies: Sequence[ChatMessageBody], conversation: ConversationBuilder) -> None:
    """Add the messages to the conversation.

    Raises:
        Refusal: a message or a part has fields that its role or type can't have.
    """
    for index, body in enumerate(bodies):
        _add_message(body, f"messages[{index}].", conversation)


def _add_message(body: ChatMessageBody, path: str, conversation: ConversationBuilder) -> None:
    check_supported(body, "message", path)
    if body.content is None and body.role not in ("assistant", "tool"):
        raise invalid(
            f"{path}content is missing or null: only a message of an assistant or a tool may have "
            "none. Send a text, which may be empty.",
            f"{path}content",
        )
    if body.tool_calls and body.role != "assistant":
        raise invalid(
            f"{path}tool_calls: only an assistant's message may have calls.", f"{path}tool_calls"
        )
    conversation.start_turn(body.role)
    text = conversation.text(body.role)
    thoughts = ""
    if isinstance(body.content, list):
        for place, part in enumerate(body.content):
            thoughts += part.thought or ""
            _add_part(part, f"{path}content[{place}]", body.role, text)
    else:
        # The text of an assistant that refused is its refusal.
        text.add(body.content or body.refusal or "")
    conversation.add(
        # Chat templates know the role developer by its older name.
        "system" if body.role == "developer" else body.role,
        text,
        reasoning=body.reasoning_content or body.reasoning or thoughts or None,
        tool_calls=tuple(
            CalledTool(call.id or "", call.function.name, _arguments(call.function))
            for call in body.tool_calls or ()
        ),
        tool_call_id=body.tool_call_id,
        name=body.name,
    )


def _add_part(part: ContentPart, path: str, role: str, text: MessageText) -> None:
    check_supported(part, "part", f"{path}.")
    match part.type, part.text, part.refusal:
        case ("text", str() as words, _) | ("refusal", _, str() as words):
            text.add(words)
        case (("thinking" | "reasoning"), _, _) if role == "assistant":
            pass
        case "text", None, _:
            raise invalid(
                f"{path}.text is missing: send a text, which may be empty.", f"{path}.text"
            )
        case (("image_url" | "input_image"), _, _):
            name = f"{path}.image_url"
            if part.picture is None:
                raise invalid(f"{name} is missing: send an object with a url.", name)
            text.show(Source(part.picture, name))
        case _:
            raise invalid(
                f"A content part of type {part.type!r}: only text and image_url are supported.",
                path,
            )


def _arguments(body: ChatCalledFunction) -> str:
    return (body.arguments or "").strip() or "{}"


class PredictionPart(BodyPart):
    type: Literal["text"]
    text: str


class PredictionBody(Struct):
    """A text that the client expects as the answer, or as parts of the answer."""

    type: Literal["content"]
    content: str | list[PredictionPart]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


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
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    prediction: PredictionBody | None = None


@routes.post(
    "/v1/chat/completions",
    Operation(
        "Answer a conversation",
        body=ChatBody,
        answer=ChatCompletion,
        events=ChatChunk,
        stream=EVENT_STREAM,
        refusals=GENERATES,
    ),
)
@passing
async def create_chat_completion(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, ChatBody)
    check_number(len(body.messages))
    check_generation(body, "chat")
    call = ModelCall(http_request, body.model)
    asked = await request_text(call, functools.partial(draft, body), "messages")
    form = ChatForm(
        call.model.id,
        int(time.time()),
        body.include_usage,
        body.include_reasoning is not False,
        call.model.settings.reasoning_fields,
    )
    stream = bool(body.stream)
    if check_mailbox(http_request):
        return await store_chat(call, asked.requests, form, stream=stream)
    return asked.submit(ChatFormat(form, asked.requests[0]), stream=stream)


def draft(body: ChatBody, model: Model) -> RequestDraft:
    body = with_defaults(body, model.settings)
    conversation = ConversationBuilder(vision=model.settings.pictures)
    converse(body.messages, conversation)
    conversation.left_out |= replaced(tool.function.name for tool in body.tools or ())
    goes_on = _goes_on(body, conversation)
    conversation.begin_with(model.settings.system)
    arguments = body.template_arguments(model.settings.template_arguments)
    alternatives = max(0, body.top_logprobs or 0)
    if alternatives and not body.logprobs:
        raise invalid("top_logprobs: it needs logprobs to be true.", "top_logprobs")
    budget = body.thinking_token_budget
    return draft_chat(
        body,
        conversation,
        arguments,
        body.limit,
        goes_on=goes_on,
        tools=tools_of(
            body.tools, body.tool_choice, parallel=body.parallel_tool_calls is not False
        ),
        constraint=constraint_of(body),
        # -1 is vLLM's "no budget".
        reasoning_tokens=None if budget == -1 else budget,
        logprobs=alternatives if body.logprobs else None,
        prediction="" if body.prediction is None else body.prediction.text,
    )


def _goes_on(body: ChatBody, conversation: ConversationBuilder) -> bool:
    """Raises: Refusal: vLLM's two fields contradict each other or the messages."""
    begins, goes = body.add_generation_prompt, body.continue_final_message
    ends_open = conversation.messages[-1].role == "assistant"
    if begins and goes:
        raise invalid(
            "continue_final_message and add_generation_prompt are both true: send one of them.",
            "add_generation_prompt",
        )
    if goes and not ends_open:
        raise invalid(
            "continue_final_message: the last message isn't the assistant's. Leave the field out, "
            "or end with the message to go on in.",
            "continue_final_message",
        )
    if begins is False and not ends_open:
        raise invalid(
            "add_generation_prompt is false, but no answer can go on in the last message, as it "
            "isn't the assistant's: leave the field out.",
            "add_generation_prompt",
        )
    if begins is False and goes is False:
        raise invalid(
            "continue_final_message and add_generation_prompt are both false: send one of them.",
            "add_generation_prompt",
        )
    return not begins and goes is not False and conversation.goes_on("messages")


routes += [*stored_chat_routes]
