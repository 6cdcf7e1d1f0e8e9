"""A body with all that it goes on from, and what a worker is told of it."""

from __future__ import annotations

import functools
from itertools import chain
from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest

from gateway.http.bodies import beside_the_loop
from gateway.http.chat.template import template_arguments, thinks
from gateway.http.kept import mailbox_of
from gateway.http.left_out import left_out_header
from gateway.http.model_call import ModelCall
from gateway.http.responses import truncation
from gateway.http.responses.bodies import ResponseBody, tools
from gateway.http.responses.context import earlier_items, resolved
from gateway.http.responses.conversation import converse
from gateway.http.responses.items import (
    BRINGS_TOOLS,
    ItemBody,
    check_number,
    left_out,
    own_items,
    picture_sources,
    without_superseded,
)
from gateway.http.responses.shape import hexadecimal, new_id
from gateway.http.responses.tools import Meaning, told
from gateway.http.sampling import generate_message
from gateway.http.structure import constraint_of
from gateway.http.supported import check_supported
from protocol.prompts import ChatPrompt
from protocol.requests import Generate

_LONGEST_SUMMARY: Final = 4096


class Asked(Struct):
    """A body and all that it goes on from. `names` is what errors call the items; `pictures` are by
    the places of theirs.
    """

    call: ModelCall
    body: ResponseBody
    response_id: str
    items: list[ItemBody]
    names: list[str]
    pictures: dict[int, list[bytes]]
    # Of the answer.
    headers: dict[str, str] = {}

    @property
    def compacts(self) -> bool:
        """It asks for a summary in the conversation's place."""
        return self.items[-1].kind == "compaction_trigger"

    @property
    def meanings(self) -> dict[str, Meaning]:
        """What calls are to the client, by the names of functions that mean something else."""
        brought = [each.tools or () for each in self.items if each.kind in BRINGS_TOOLS]
        every = chain(told(self.body.tools or (), "tools"), *(told(each, "") for each in brought))
        return {
            each.function.name: each.meaning
            for each in every
            if each.meaning != Meaning("function", each.function.name)
        }


async def build(asked: Asked, cut: int = 0) -> Generate:
    """What a worker is told of it, without the first items up to `cut`.

    Raises:
        Refusal: something in it can't be done.
    """
    return await beside_the_loop(asked.call.share.size_bytes, _generate, asked, cut)


async def gather(http_request: HttpRequest, body: ResponseBody) -> Asked:
    """Raises: Refusal: there is no such model or earlier response, or the items can't be read."""
    check_supported(body, "responses")
    call = ModelCall(http_request, body.model)
    response_id = new_id()
    mailbox, owner, share = mailbox_of(http_request), call.caller.owner, call.share
    before: list[ItemBody] = []
    if body.previous_response_id is not None:
        before = await earlier_items(mailbox, owner, body.previous_response_id, share)
    check_number(body.input, before)
    suffix = hexadecimal(response_id)
    own = await beside_the_loop(share.size_bytes, own_items, body.input, suffix)
    items = [*before, *await resolved(mailbox, owner, own, share)]
    # What was taken once can be taken again.
    names = ["previous_response_id"] * len(before)
    names += [f"input[{index}]" for index in range(len(own))]
    items, names = without_superseded(items, names)
    sources = await beside_the_loop(
        share.size_bytes, functools.partial(picture_sources, items, names, looks=call.looks)
    )
    unseen: set[str] = set()
    if not (sources or call.looks):
        unseen = await beside_the_loop(share.size_bytes, left_out, items)
    read = await call.read_pictures([source for _, source in sources])
    pictures: dict[int, list[bytes]] = {}
    for (place, _), picture in zip(sources, read, strict=True):
        pictures.setdefault(place, []).append(picture)
    return Asked(call, body, response_id, items, names, pictures, left_out_header(unseen))


def _generate(asked: Asked, cut: int) -> Generate:
    body, settings = asked.body, asked.call.model.settings
    generation = body.generation()
    arguments = template_arguments(generation, settings.template_arguments)
    places = truncation.kept(asked.items, cut)
    said = converse(
        body.instructions,
        [asked.items[each] for each in places],
        [asked.names[each] for each in places],
        [picture for each in places for picture in asked.pictures.get(each, ())],
        looks=settings.pictures,
    )
    callable_, constraint = tools(body, said), constraint_of(generation)
    limit = body.max_output_tokens
    if asked.compacts:
        constraint, limit = None, limit or _LONGEST_SUMMARY
        if callable_ is not None:
            # They are shown all the same: the prompt stays as it was computed.
            callable_ = msgspec.structs.replace(callable_, choice="none", name=None)
    return msgspec.structs.replace(
        generate_message(generation, ChatPrompt(said.messages, arguments), limit),
        parsed=True,
        tools=callable_,
        constraint=constraint,
        logprobs=body.logprobs,
        thinks=thinks(arguments),
    )
