"""The way of a request for text, on every API:

1. The route reads the body and decodes it once (`read_json`).
2. The model and the caller are looked up (`ModelCall`).
3. The API's own file drafts what a worker gets: the parameters, and the conversation or the texts.
4. The pictures in the conversation are read (`PictureReader`).
5. The headers and the body give the terms: deadline, priority, how long the model stays loaded.
6. For each prompt and each answer to it a request is made, and the key's limits count it. The first
   one is remembered (`RequestMemory`).
7. The requests go into the model's queue.
8. As their pieces come, the API's writer writes the answer (`TextAnswer`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from gateway.config.model import Model
from gateway.http.generation.conversation import ConversationBuilder
from gateway.http.generation.generation_body import (
    MOST_ANSWERS,
    GenerationBody,
    generate_message,
    thinks,
)
from gateway.http.generation.model_call import ModelCall, check_mailbox
from gateway.http.generation.pictures import (
    PictureReader,
    left_out_header,
    not_looked_at,
)
from gateway.http.generation.request_memory import RequestMemory
from gateway.http.wire.access_log import unique
from gateway.http.wire.answer import EVENTS, Framing, TextAnswer
from gateway.http.wire.errors import invalid
from gateway.requests.choices import Format, answers_to
from gateway.requests.request import Request
from gateway.why.record import RequestRecord
from protocol.answers import RequestField
from protocol.requests import ChatPrompt, Generate

# Fields that have the same name in bodies and in messages for workers.
_SAME_NAMES: Final[tuple[RequestField, ...]] = (
    "tools",
    "suffix",
    "logit_bias",
    "allowed_token_ids",
    "stop_token_ids",
    "bad_words",
)


class RequestDraft(Struct):
    """What an API makes of a body: the parameters under the names of chat, and the message for a
    worker for each prompt, without an id and without the bytes of pictures. The only prompt of a
    chat is made from its `conversation`.
    """

    parameters: GenerationBody
    generates: Sequence[Generate]
    conversation: ConversationBuilder | None = None


def draft_chat(
    parameters: GenerationBody,
    conversation: ConversationBuilder,
    arguments: str,
    limit: int | None,
    *,
    goes_on: bool,
    **fields: Any,
) -> RequestDraft:
    """The draft of a chat. `arguments` are those of the chat template, `limit` the most tokens of
    the answer, and `fields` what else the API sets of `Generate`. With `goes_on` the answer goes on
    in the last message.
    """
    prompt = ChatPrompt(tuple(conversation.messages), arguments, goes_on)
    generate = msgspec.structs.replace(
        generate_message(parameters, prompt, limit), parsed=True, thinks=thinks(arguments), **fields
    )
    return RequestDraft(parameters, [generate], conversation)


class TextRequest(Struct, frozen=True):
    """A request for text that is ready for the model's queue. For each prompt there are as many
    `requests` as answers are wanted. The `record` is what the `memory` remembers of the
    first; None: nothing.
    """

    call: ModelCall
    requests: Sequence[Request]
    left_out: set[str]
    memory: RequestMemory
    record: RequestRecord | None

    def submit(
        self,
        form: Format,
        *,
        stream: bool = False,
        framing: Framing = EVENTS,
        complete: Callable[[], Awaitable[None]] | None = None,
    ) -> TextAnswer:
        """Put the requests into the model's queue. Returns the response that writes their answers.
        `complete` is awaited before the end of the answer is sent.

        Raises:
            Refusal: the queue is full.
        """
        call = self.call
        call.fleet.submit(call.supervisor, *self.requests)  # 7
        return TextAnswer(  # 8
            call.supervisor,
            self.requests,
            form,
            stream=stream,
            framing=framing,
            headers=left_out_header(self.left_out),
            complete=complete,
        )


async def request_text(
    call: ModelCall, draft: Callable[[Model], RequestDraft], prompt_param: str, answer: str = ""
) -> TextRequest:
    """Steps 3 to 6. `prompt_param` names the body's field with the prompt. `answer` is the id of
    the answer, if that has another than the request.

    Raises:
        Refusal: the body, a picture or a header can't be used, or there are too many answers.
    """
    check_mailbox(call.http)
    drafted = await call.beside_the_loop(draft, call.model)  # 3
    generates = await with_pictures(call, drafted)  # 4
    requests = _requests(call, drafted.parameters, generates, prompt_param)  # 5, 6
    left_out = set() if drafted.conversation is None else drafted.conversation.left_out
    memory: RequestMemory = call.http.app.state.request_memory
    salt = drafted.parameters.cache_salt or ""
    record = await memory.remember(call, requests[0], salt, answer)
    return TextRequest(call, requests, left_out, memory, record)


def counting(drafted: RequestDraft) -> RequestDraft:
    """The draft by which a worker only counts the tokens of the prompts."""
    generates = [
        msgspec.structs.replace(generate, max_tokens=0, counts=True, constraint=None)
        for generate in drafted.generates
    ]
    return RequestDraft(drafted.parameters, generates, drafted.conversation)


async def with_pictures(call: ModelCall, drafted: RequestDraft) -> Sequence[Generate]:
    """The messages for a worker, with the bytes of their pictures.

    Raises:
        Refusal: the model takes no pictures, or a picture can't be read.
    """
    conversation = drafted.conversation
    if conversation is None:
        return drafted.generates
    if conversation.refused is not None:
        raise not_looked_at(conversation.refused, call.model.id)
    sources = conversation.sources
    if not sources:
        return drafted.generates
    reader: PictureReader = call.http.app.state.pictures
    unread = [source for source in sources if source not in call.pictures]
    read = await reader.read(unread, call.fleet.settings.gateway, call.share)
    call.pictures.update(zip(unread, read, strict=True))
    (generate,) = drafted.generates
    assert isinstance(generate.prompt, ChatPrompt)
    messages = conversation.shown(call.pictures)
    prompt = msgspec.structs.replace(generate.prompt, messages=messages)
    return [msgspec.structs.replace(generate, prompt=prompt)]


def _requests(
    call: ModelCall, parameters: GenerationBody, generates: Sequence[Generate], prompt_param: str
) -> list[Request]:
    answers = parameters.answers
    if len(generates) * answers > MOST_ANSWERS:
        raise invalid(
            f"The request asks for {len(generates) * answers:,} answers, of {MOST_ANSWERS} at "
            "most: send several requests.",
            parameters.answers_param if answers > 1 else prompt_param,
        )
    salt = call.caller.cache_salt(
        parameters.cache_salt or "", shared=call.fleet.settings.prompt_cache.shared
    )
    # A worker gets the prompt once for each answer.
    call.share.reserve(call.share.size_bytes * (answers - 1))
    params = _params(parameters, prompt_param)
    terms = call.terms(parameters.priority, parameters.keep_alive, params)  # 5
    requests: list[Request] = []
    for generate in generates:  # 6
        named = msgspec.structs.replace(generate, request_id=unique(terms.id), cache_salt=salt)
        requests += answers_to(named, answers, terms, call.fleet.now())
    call.count(requests)
    return requests


def _params(parameters: GenerationBody, prompt_param: str) -> dict[RequestField, str]:
    """The body's names for the fields of `Generate`, for the errors of workers."""
    return {
        **{name: name for name in _SAME_NAMES},
        "prompt": prompt_param,
        "prompt_logprobs": "echo",
        "template_arguments": "chat_template_kwargs",
        "constraint": parameters.constraint_param,
    }
