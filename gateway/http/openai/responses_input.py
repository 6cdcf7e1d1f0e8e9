"""Gathers the input of a response (body, earlier items, pictures) and cuts it to the context."""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest

from gateway.http.generation.generation import (
    constraint_of,
    counting,
    generate_message,
    thinks,
    with_defaults,
)
from gateway.http.generation.model_call import ModelCall
from gateway.http.generation.parameters import check_supported
from gateway.http.generation.prefill import goes_on
from gateway.http.generation.tools import replaced
from gateway.http.openai.kept import mailbox_of
from gateway.http.openai.responses_bodies import ResponseBody, tools
from gateway.http.openai.responses_conversation import converse
from gateway.http.openai.responses_items import (
    BRINGS_TOOLS,
    CallMeaning,
    ItemBody,
    check_items,
    decode_items,
    described_tools,
    left_out,
    own_items,
    picture_sources,
    without_superseded,
)
from gateway.http.openai.responses_objects import hexadecimal, new_id
from gateway.http.wire.access_log import unique
from gateway.http.wire.bodies import beside_the_loop, take_decoded
from gateway.http.wire.errors import invalid
from gateway.mailbox.entry import StoredAnswer
from gateway.mailbox.mailbox import Mailbox
from gateway.requests.request import Request, Terms
from gateway.requests.share import Share
from gateway.system.refusal import Refusal
from protocol.requests import ChatPrompt, Generate

_ITEM_ID: Final = re.compile(r"[a-z]{2,3}_(?P<response>[0-9a-f]{32})(?P<place>[0-9a-f]{2,4})")
# The most responses that are looked up in the mailbox for the references of one body.
_MOST_REFERENCES: Final = 256


class _Answered(Struct):
    output: list[ItemBody]


class _Known(NamedTuple):
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
    found = await mailbox.find((owner, response_id), share, items=True)
    if found is None or found.entry.api != "responses":
        raise _refusal(
            f"there is no stored response {response_id[:200]!r}: it never existed, was deleted or "
            "has expired (mailbox.keep_s); send the whole conversation as input",
        )
    if found.entry.status not in ("completed", "incomplete"):
        raise _refusal(f"{response_id!r} is {found.entry.status}: wait until it is completed")
    return await beside_the_loop(share.size_bytes, _whole, found, share)


async def resolved(
    mailbox: Mailbox, owner: str, items: list[ItemBody], share: Share
) -> list[ItemBody]:
    """The items, with stored items in place of the references to them.

    Raises:
        Refusal: a reference names no stored item, or the share has no room for the items.
    """
    references = [each for each in items if each.kind == "item_reference"]
    if not references:
        return items
    known: dict[str, dict[str, _Known]] = {}
    for response_id in list(dict.fromkeys(map(_response_of, references)))[:_MOST_REFERENCES]:
        found = await mailbox.find((owner, response_id), share, items=True)
        if found is not None:
            known[response_id] = await beside_the_loop(share.size_bytes, _by_id, found, share)
    return await beside_the_loop(share.size_bytes, _replaced, items, known, share)


def _response_of(reference: ItemBody) -> str:
    """The id of the response that has the item. Empty: no gateway has made the item's id."""
    found = _ITEM_ID.fullmatch(reference.id or "")
    return "" if found is None else f"resp_{found['response']}"


def _by_id(found: StoredAnswer, share: Share) -> dict[str, _Known]:
    return {
        each.id: _Known(each, len(msgspec.json.encode(each)))
        for each in _whole(found, share)
        if each.id is not None
    }


def _replaced(
    items: list[ItemBody], known: dict[str, dict[str, _Known]], share: Share
) -> list[ItemBody]:
    whole = []
    for index, item in enumerate(items):
        if item.kind == "item_reference":
            found = known.get(_response_of(item), {}).get(item.id or "")
            if found is None:
                param = f"input[{index}].id"
                raise invalid(
                    f"{param}: there is no stored item {(item.id or '')[:100]!r}: send the item "
                    "itself.",
                    param,
                )
            # The item is counted for each reference, since the prompt has the item as often.
            share.take(found.size_bytes)
            item = found.item
        whole.append(item)
    return whole


def _whole(found: StoredAnswer, share: Share) -> list[ItemBody]:
    """The input items and the output items of a stored response."""
    items = decode_items(found.items, share)
    take_decoded(share, found.body)
    return [*items, *msgspec.json.decode(found.body, type=_Answered).output]


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
    users = [index for index, each in enumerate(items) if each.role == "user" and index]
    return [0, *users]


def places_after(items: Sequence[ItemBody], cut: int) -> list[int]:
    """The places of the items that stay after a cut. Messages of the system always stay."""
    return [
        index
        for index, each in enumerate(items)
        if index >= cut or each.role in ("system", "developer")
    ]


async def first_that_fits(
    call: ModelCall,
    terms: Terms,
    build: Callable[[int], Awaitable[Generate]],
    choices: Sequence[int],
) -> int:
    """The smallest cut in `choices` with which prompt and answer fit the context, or the last cut
    if no cut is enough. The model is loaded for this, since its worker counts the tokens.

    Raises:
        Refusal: the model can't count now.
    """
    low, high = 0, len(choices) - 1
    while low < high:
        middle = (low + high) // 2
        if await _fits(call, terms, await build(choices[middle])):
            high = middle
        else:
            low = middle + 1
    return choices[low]


async def _fits(call: ModelCall, terms: Terms, generate: Generate) -> bool:
    task = msgspec.structs.replace(counting(generate), request_id=unique(terms.id))
    request = Request(task, terms, call.fleet.now())
    call.fleet.submit(call.compartment, request)
    try:
        while not request.over:
            await request.take()
    except Refusal as refusal:
        if refusal.code == "context_length_exceeded":
            return False
        raise
    finally:
        if not request.over:
            call.compartment.traffic.cancel(request)
    worker = call.compartment.worker
    if request.usage is None or worker is None or worker.report.context_tokens is None:
        return True
    context = worker.report.context_tokens
    room = min(generate.max_tokens or _ROOM_TOKENS, context // _SMALL)
    return request.usage.prompt_tokens + room <= context


_LONGEST_SUMMARY: Final = 4096


class ResponseInput(Struct):
    """A body with all items of its prompt. `names` has the name of each item for errors. `pictures`
    maps the place of an item to the bytes of its pictures. `left_out` names the parts that the
    model doesn't get.
    """

    call: ModelCall
    body: ResponseBody
    response_id: str
    items: list[ItemBody]
    names: list[str]
    pictures: dict[int, list[bytes]]
    left_out: set[str]

    @property
    def compacts(self) -> bool:
        """Whether the body asks for a summary of the conversation."""
        return self.items[-1].kind == "compaction_trigger"

    @property
    def meanings(self) -> dict[str, CallMeaning]:
        """The meaning of the calls of each function. Plain functions are left out."""
        brought = [each.tools or () for each in self.items if each.kind in BRINGS_TOOLS]
        every = chain(
            described_tools(self.body.tools or (), "tools"),
            *(described_tools(each, "") for each in brought),
        )
        return {
            each.function.name: each.meaning
            for each in every
            if each.meaning != CallMeaning("function", each.function.name)
        }


async def build(asked: ResponseInput, cut: int = 0) -> Generate:
    """The message for a worker, without the first `cut` items.

    Raises:
        Refusal: an item or a tool is invalid.
    """
    return await beside_the_loop(asked.call.share.size_bytes, _generate, asked, cut)


async def gather(http_request: HttpRequest, body: ResponseBody) -> ResponseInput:
    """Raises: Refusal: there is no such model or earlier response, or the items can't be read."""
    check_supported(body, "responses")
    call = ModelCall(http_request, body.model)
    body = with_defaults(body, call.model.settings)
    response_id = new_id()
    mailbox, owner, share = mailbox_of(http_request), call.caller.owner, call.share
    before: list[ItemBody] = []
    if body.previous_response_id is not None:
        before = await earlier_items(mailbox, owner, body.previous_response_id, share)
    check_items(body.input, before)
    suffix = hexadecimal(response_id)
    own = await beside_the_loop(share.size_bytes, own_items, body.input, suffix)
    items = [*before, *await resolved(mailbox, owner, own, share)]
    # An earlier response has accepted these items, so errors don't name them one by one.
    names = ["previous_response_id"] * len(before)
    names += [f"input[{index}]" for index in range(len(own))]
    items, names = without_superseded(items, names)
    sources = await beside_the_loop(
        share.size_bytes, functools.partial(picture_sources, items, names, vision=call.vision)
    )
    unseen: set[str] = set()
    if not (sources or call.vision):
        unseen = await beside_the_loop(share.size_bytes, left_out, items)
    own_tools = described_tools(body.tools or (), "tools")
    unseen |= replaced(each.function.name for each in own_tools)
    read = await call.read_pictures([source for _, source in sources])
    pictures: dict[int, list[bytes]] = {}
    for (place, _), picture in zip(sources, read, strict=True):
        pictures.setdefault(place, []).append(picture)
    return ResponseInput(call, body, response_id, items, names, pictures, unseen)


def _instructions(asked: ResponseInput) -> str | None:
    """The body's instructions; without any system message of the client, those of the model."""
    if asked.body.instructions is not None or any(map(_is_system, asked.items)):
        return asked.body.instructions
    return asked.call.model.settings.system


def _is_system(item: ItemBody) -> bool:
    return item.kind == "message" and item.role in ("system", "developer")


def _generate(asked: ResponseInput, cut: int) -> Generate:
    body, settings = asked.body, asked.call.model.settings
    generation = body.generation()
    arguments = generation.template_arguments(settings.template_arguments)
    places = places_after(asked.items, cut)
    said = converse(
        _instructions(asked),
        [asked.items[each] for each in places],
        [asked.names[each] for each in places],
        [picture for each in places for picture in asked.pictures.get(each, ())],
        vision=settings.pictures,
    )
    callable_, constraint = tools(body, said), constraint_of(generation)
    limit = generation.limit
    if asked.compacts:
        constraint, limit = None, limit or _LONGEST_SUMMARY
        if callable_ is not None:
            # The tools stay in the prompt, so that the prompt matches the prompt cache.
            callable_ = msgspec.structs.replace(callable_, choice="none", name=None)
    if body.prewarms:
        limit = 0
    prompt = ChatPrompt(said.messages, arguments, goes_on(said.messages, "input"))
    return msgspec.structs.replace(
        generate_message(generation, prompt, limit),
        parsed=True,
        tools=callable_,
        constraint=constraint,
        logprobs=body.logprobs,
        thinks=thinks(arguments),
    )
