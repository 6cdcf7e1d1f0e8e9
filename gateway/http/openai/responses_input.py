"""Gathers the input of a response (body, earlier items, pictures) and cuts it to the context."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest

from gateway.config.model import Model
from gateway.http.generation.conversation import ConversationBuilder
from gateway.http.generation.generation_body import (
    constraint_of,
    with_defaults,
)
from gateway.http.generation.model_call import ModelCall
from gateway.http.generation.supported_parameters import check_supported
from gateway.http.generation.text_request import (
    RequestDraft,
    counting,
    draft_chat,
    with_pictures,
)
from gateway.http.generation.tools import replaced
from gateway.http.openai.responses_bodies import ResponseBody, tools
from gateway.http.openai.responses_conversation import converse
from gateway.http.openai.responses_items import (
    BRINGS_TOOLS,
    CallMeaning,
    ItemBody,
    check_items,
    decode_items,
    described_tools,
    own_items,
    without_superseded,
)
from gateway.http.openai.stored_answers import mailbox_of
from gateway.http.wire.access_log import unique
from gateway.http.wire.bodies import beside_the_loop, take_decoded
from gateway.http.wire.errors import invalid
from gateway.mailbox.entry import StoredAnswer
from gateway.mailbox.jobs import LOWEST_PRIORITY
from gateway.mailbox.mailbox import Mailbox
from gateway.requests.request import Request, Terms
from gateway.requests.share import Share
from gateway.system.refusal import Refusal

_ITEM_ID: Final = re.compile(r"[a-z]{2,3}_(?P<response>[0-9a-f]{32})(?P<place>[0-9a-f]{2,4})")
# The most responses that are looked up in the mailbox for the references of one body.
_MOST_REFERENCES: Final = 256


class _ResponseOutput(Struct):
    output: list[ItemBody]


class _StoredItem(NamedTuple):
    """A stored item, and its size as JSON."""

    item: ItemBody
    size_bytes: int


async def earlier_items(
    mailbox: Mailbox, owner: str, response_id: str, share: Share
) -> list[ItemBody]:
    """The input items and the output items of an earlier response.

    Raises:
        Refusal: there is no such response, it is pending, failed or cancelled, or the share has no
            room for the items.
    """
    answer = await mailbox.find((owner, response_id), share, items=True)
    if answer is None or answer.entry.api != "responses":
        raise _refusal(
            f"there is no stored response {response_id[:200]!r}: it never existed, was deleted or "
            "has expired (mailbox.keep_s); send the whole conversation as input",
        )
    if answer.entry.status not in ("completed", "incomplete"):
        raise _refusal(f"{response_id!r} is {answer.entry.status}: wait until it is completed")
    return await beside_the_loop(share.size_bytes, _whole, answer, share)


async def resolved(
    mailbox: Mailbox, owner: str, items: list[ItemBody], share: Share
) -> list[ItemBody]:
    """The items, with stored items in place of the references to them.

    Raises:
        Refusal: a reference names no stored item, or the share has no room for the items.
    """
    references = [item for item in items if item.kind == "item_reference"]
    if not references:
        return items
    known: dict[str, dict[str, _StoredItem]] = {}
    for response_id in list(dict.fromkeys(map(_response_of, references)))[:_MOST_REFERENCES]:
        answer = await mailbox.find((owner, response_id), share, items=True)
        if answer is not None:
            known[response_id] = await beside_the_loop(share.size_bytes, _by_id, answer, share)
    return await beside_the_loop(share.size_bytes, _replaced, items, known, share)


def _response_of(reference: ItemBody) -> str:
    """The id of the response that has the item. Empty: no gateway has made the item's id."""
    match = _ITEM_ID.fullmatch(reference.id or "")
    return "" if match is None else f"resp_{match['response']}"


def _by_id(answer: StoredAnswer, share: Share) -> dict[str, _StoredItem]:
    return {
        item.id: _StoredItem(item, len(msgspec.json.encode(item)))
        for item in _whole(answer, share)
        if item.id is not None
    }


def _replaced(
    items: list[ItemBody], known: dict[str, dict[str, _StoredItem]], share: Share
) -> list[ItemBody]:
    whole = []
    for index, item in enumerate(items):
        if item.kind == "item_reference":
            stored = known.get(_response_of(item), {}).get(item.id or "")
            if stored is None:
                param = f"input[{index}].id"
                raise invalid(
                    f"{param}: there is no stored item {(item.id or '')[:100]!r}: send the item "
                    "itself.",
                    param,
                )
            # The item is counted for each reference, since the prompt has the item as often.
            share.reserve(stored.size_bytes)
            item = stored.item
        whole.append(item)
    return whole


def _whole(answer: StoredAnswer, share: Share) -> list[ItemBody]:
    """The input items and the output items of a stored response."""
    items = decode_items(answer.items, share)
    take_decoded(share, answer.body)
    return [*items, *msgspec.json.decode(answer.body, type=_ResponseOutput).output]


def _refusal(reason: str) -> Refusal:
    param = "previous_response_id"
    return invalid(f"{param}: {reason}.", param)


# Tokens that a cut leaves for an answer without a limit, unless the context is small.
_ROOM_TOKENS: Final = 1024
_SMALL: Final = 4


def possible_cuts(items: Sequence[ItemBody]) -> list[int]:
    """How many items may be dropped at the beginning: 0, or all items before a user's message, so
    that calls keep their outputs.
    """
    return [0, *(index for index, item in enumerate(items) if item.role == "user" and index)]


def places_after(items: Sequence[ItemBody], cut: int) -> list[int]:
    """The places of the items that stay after a cut. Messages of the system always stay."""
    return [
        index
        for index, item in enumerate(items)
        if index >= cut or item.role in ("system", "developer")
    ]


async def cut_that_fits(asked: ResponseInput) -> int:
    """How many items to drop at the beginning: as few as possible, so that prompt and answer fit
    the model's context. If nothing is enough, as many as possible. The model is loaded for this,
    since its worker counts the tokens.

    Raises:
        Refusal: an item is invalid, or the model can't count now.
    """
    if asked.body.background:
        raise invalid("truncation: auto can't be combined with background.", "truncation")
    call = asked.call
    # The bounds on pictures are those of the whole conversation.
    await with_pictures(call, await call.beside_the_loop(draft, asked, 0, call.model))
    terms = call.terms(asked.body.priority, None, {})
    cuts = possible_cuts(asked.items)
    low, high = 0, len(cuts) - 1
    while low < high:
        middle = (low + high) // 2
        if await _fits(asked, terms, cuts[middle]):
            high = middle
        else:
            low = middle + 1
    return cuts[low]


async def _fits(asked: ResponseInput, terms: Terms, cut: int) -> bool:
    call = asked.call
    drafted = await call.beside_the_loop(draft, asked, cut, call.model)
    (generate,) = await with_pictures(call, counting(drafted))
    task = msgspec.structs.replace(generate, request_id=unique(terms.id))
    request = Request(task, terms, call.fleet.now())
    call.fleet.submit(call.supervisor, request)
    try:
        while not request.over:
            await request.next_piece()
    except Refusal as refusal:
        if refusal.code == "context_length_exceeded":
            return False
        raise
    finally:
        if not request.over:
            call.supervisor.traffic.cancel(request)
    worker = call.supervisor.worker
    if request.usage is None or worker is None or worker.report.context_tokens is None:
        return True
    context = worker.report.context_tokens
    room = min(drafted.generates[0].max_tokens or _ROOM_TOKENS, context // _SMALL)
    return request.usage.prompt_tokens + room <= context


_LONGEST_SUMMARY: Final = 4096


class ResponseInput(Struct):
    """A body with all items of its prompt. `names` has the name of each item for errors."""

    call: ModelCall
    body: ResponseBody
    response_id: str
    items: list[ItemBody]
    names: list[str]

    @property
    def compacts(self) -> bool:
        """Whether the body asks for a summary of the conversation."""
        return self.items[-1].kind == "compaction_trigger"

    @property
    def meanings(self) -> dict[str, CallMeaning]:
        """The meaning of the calls of each function. Plain functions are left out."""
        brought = [item.tools or () for item in self.items if item.kind in BRINGS_TOOLS]
        tools = chain(
            described_tools(self.body.tools or (), "tools"),
            *(described_tools(tools, "") for tools in brought),
        )
        return {
            tool.function.name: tool.meaning
            for tool in tools
            if tool.meaning != CallMeaning("function", tool.function.name)
        }


async def gather(http_request: HttpRequest, body: ResponseBody) -> ResponseInput:
    """Raises: Refusal: there is no such model or earlier response, or the items can't be read."""
    check_supported(body, "responses")
    call = ModelCall(http_request, body.model)
    body = with_defaults(body, call.model.settings)
    suffix = uuid.uuid4().hex
    mailbox, owner, share = mailbox_of(http_request), call.caller.owner, call.share
    before: list[ItemBody] = []
    if body.previous_response_id is not None:
        before = await earlier_items(mailbox, owner, body.previous_response_id, share)
    check_items(body.input, before)
    new = await call.beside_the_loop(own_items, body.input, suffix)
    items = [*before, *await resolved(mailbox, owner, new, share)]
    # An earlier response has accepted these items, so errors don't name them one by one.
    names = ["previous_response_id"] * len(before)
    names += [f"input[{index}]" for index in range(len(new))]
    items, names = without_superseded(items, names)
    return ResponseInput(call, body, f"resp_{suffix}", items, names)


def _instructions(asked: ResponseInput) -> str | None:
    """The body's instructions; without any system message of the client, those of the model."""
    if asked.body.instructions is not None or any(map(_is_system, asked.items)):
        return asked.body.instructions
    return asked.call.model.settings.system


def _is_system(item: ItemBody) -> bool:
    return item.kind == "message" and item.role in ("system", "developer")


def draft(asked: ResponseInput, cut: int, model: Model) -> RequestDraft:
    """The draft without the first `cut` items."""
    body, settings = asked.body, model.settings
    parameters = body.generation()
    if body.background and body.priority is None:
        parameters.priority = LOWEST_PRIORITY
    arguments = parameters.template_arguments(settings.template_arguments)
    places = places_after(asked.items, cut)
    conversation = ConversationBuilder(vision=settings.pictures)
    brought = converse(
        _instructions(asked),
        [asked.items[place] for place in places],
        [asked.names[place] for place in places],
        conversation,
    )
    offered = described_tools(body.tools or (), "tools")
    conversation.left_out |= replaced(tool.function.name for tool in offered)
    callable_, constraint = tools(body, brought), constraint_of(parameters)
    limit = parameters.limit
    if asked.compacts:
        constraint, limit = None, limit or _LONGEST_SUMMARY
        if callable_ is not None:
            # The tools stay in the prompt, so that the prompt matches the prompt cache.
            callable_ = msgspec.structs.replace(callable_, choice="none", name=None)
    if body.prewarms:
        limit = 0
    return draft_chat(
        parameters,
        conversation,
        arguments,
        limit,
        goes_on=conversation.goes_on("input"),
        tools=callable_,
        constraint=constraint,
        logprobs=body.logprobs,
    )
