"""POST /v1/chat/completions."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.config.model import Model
from gateway.http.generation.generation import (
    LARGEST_COUNT,
    TemplateBody,
    check_generation,
    check_number,
    constraint_of,
    generate_message,
    thinks,
    with_defaults,
    with_system,
)
from gateway.http.generation.model_call import ModelCall, check_mailbox
from gateway.http.generation.parameters import check_supported, refusing
from gateway.http.generation.pictures import UNSEEN, Source, newest
from gateway.http.generation.prefill import goes_on
from gateway.http.generation.tools import ToolBody, ToolChoiceBody, replaced, tools_of
from gateway.http.openai.chat_writer import ChatChunk, ChatCompletion, ChatForm, ChatFormat
from gateway.http.openai.kept import keep, kept_routes
from gateway.http.passing.servers import passing
from gateway.http.wire.bodies import BodyPart, read_json
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import EVENT_STREAM, GENERATES, Operation, Routes
from protocol.requests import CalledTool, ChatMessage, ChatPrompt, Generate, Picture

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


def left_out(bodies: list[ChatMessageBody]) -> set[str]:
    """The kinds of parts in these messages that a model without vision doesn't get."""
    parts = chain.from_iterable(each.content for each in bodies if isinstance(each.content, list))
    return {"image"} if any(each.type in _PICTURES for each in parts) else set()


def picture_sources(bodies: list[ChatMessageBody], *, vision: bool = True) -> list[Source]:
    """The pictures of all messages, in order. Without `vision` (the model has no vision) only those
    of the newest user message.

    Raises:
        Refusal: a picture has no address, or is not in a message of a user.
    """
    found = []
    new = newest([each.role for each in bodies])
    for index, body in enumerate(bodies):
        for place, part in enumerate(body.content if isinstance(body.content, list) else ()):
            if part.type not in _PICTURES:
                continue
            name = f"messages[{index}].content[{place}].image_url"
            if part.picture is None:
                raise invalid(f"{name} is missing: send an object with a url.", name)
            if body.role != "user":
                raise invalid(f"{name}: only a user's message may have pictures.", name)
            if vision or index in new:
                found.append(Source(part.picture, name))
    return found


def chat_messages(
    bodies: list[ChatMessageBody], pictures: Sequence[bytes] = (), *, vision: bool = True
) -> tuple[ChatMessage, ...]:
    """The messages as a worker renders them. `pictures` are the files of `picture_sources`. Without
    `vision` the text has a note in place of each picture.

    Raises:
        Refusal: a message or a part has fields that its role or type can't have.
    """
    left = iter(pictures) if vision else None
    return tuple(_message(index, each, left) for index, each in enumerate(bodies))


def _message(index: int, body: ChatMessageBody, pictures: Iterator[bytes] | None) -> ChatMessage:
    path = f"messages[{index}]."
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
    content, shown = _content(path, body, pictures)
    return ChatMessage(
        # Chat templates know the role developer by its older name.
        "system" if body.role == "developer" else body.role,
        content,
        reasoning=body.reasoning_content or body.reasoning or _thoughts(body) or None,
        tool_calls=tuple(
            CalledTool(each.id or "", each.function.name, _arguments(each.function))
            for each in body.tool_calls or ()
        ),
        tool_call_id=body.tool_call_id,
        name=body.name,
        pictures=shown,
    )


def _thoughts(body: ChatMessageBody) -> str:
    parts = body.content if isinstance(body.content, list) else ()
    return "".join(part.thought or "" for part in parts)


def _arguments(body: ChatCalledFunction) -> str:
    return (body.arguments or "").strip() or "{}"


def _content(
    path: str, body: ChatMessageBody, pictures: Iterator[bytes] | None
) -> tuple[str, tuple[Picture, ...]]:
    """The text of a message, and its pictures with their places in the text. The text of an
    assistant that refused is its refusal.
    """
    if not isinstance(body.content, list):
        return body.content or body.refusal or "", ()
    texts: list[str] = []
    shown = []
    length = 0
    for place, part in enumerate(body.content):
        check_supported(part, "part", f"{path}content[{place}].")
        match part.type, part.text, part.refusal:
            case "text", str() as text, _:
                texts.append(text)
            case "refusal", _, str() as text:
                texts.append(text)
            case (("thinking" | "reasoning"), _, _) if body.role == "assistant":
                continue
            case "text", None, _:
                raise invalid(
                    f"{path}content[{place}].text is missing: send a text, which may be empty.",
                    f"{path}content[{place}].text",
                )
            case (("image_url" | "input_image"), _, _) if pictures is not None:
                shown.append(Picture(next(pictures), length, f"{path}content[{place}].image_url"))
                continue
            case (("image_url" | "input_image"), _, _):
                text = f"\n{UNSEEN}\n"
                texts.append(text)
            case _:
                raise invalid(
                    f"A content part of type {part.type!r}: only text and image_url are supported.",
                    f"{path}content[{place}]",
                )
        length += len(text)
    return "".join(texts), tuple(shown)


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
        return "".join(each.text for each in self.content)


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
    body = with_defaults(body, call.model.settings)
    find = functools.partial(picture_sources, body.messages, vision=call.vision)
    sources = await call.beside_the_loop(find)
    unseen = set() if call.vision else await call.beside_the_loop(left_out, body.messages)
    unseen |= replaced(each.function.name for each in body.tools or ())
    pictures = await call.read_pictures(sources)
    generate = await call.beside_the_loop(_generate, body, call.model, pictures)
    requests = call.requests(body, [generate], "messages")
    reasons = body.include_reasoning is not False
    fields = call.model.settings.reasoning_fields
    form = ChatForm(call.model.id, int(time.time()), body.include_usage, reasons, fields)
    stream = bool(body.stream)
    if check_mailbox(http_request):
        return await keep(call, requests, form, stream=stream)
    return call.answer(requests, ChatFormat(form, requests[0]), stream=stream, left_out=unseen)


def _goes_on(body: ChatBody, messages: Sequence[ChatMessage]) -> bool:
    """Raises: Refusal: vLLM's two fields contradict each other or the messages."""
    begins, goes = body.add_generation_prompt, body.continue_final_message
    ends_open = messages[-1].role == "assistant"
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
    return not begins and goes is not False and goes_on(messages, "messages")


def _generate(body: ChatBody, model: Model, pictures: Sequence[bytes]) -> Generate:
    arguments = body.template_arguments(model.settings.template_arguments)
    messages = chat_messages(body.messages, pictures, vision=model.settings.pictures)
    goes = _goes_on(body, messages)
    prompt = ChatPrompt(with_system(messages, model.settings), arguments, goes)
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
        prediction="" if body.prediction is None else body.prediction.text,
    )


routes += [*kept_routes]
