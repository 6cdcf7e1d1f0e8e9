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
from gateway.http.kept import mailbox_of, owner_of
from gateway.http.left_out import left_out_header
from gateway.http.pictures.reader import PictureReader, check_pictures
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
from gateway.http.responses.shape import hexadecimal
from gateway.http.responses.tools import Meaning, told
from gateway.http.sampling import generate_message
from gateway.http.structure import constraint_of
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.requests.share import share_of
from protocol.prompts import ChatPrompt
from protocol.requests import Generate

_LONGEST_SUMMARY: Final = 4096


class Asked(Struct):
    """A body and all that it goes on from. `names` is what errors call the items; `pictures` are by
    the places of theirs.
    """

    body: ResponseBody
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


async def gather(
    request: HttpRequest,
    fleet: Fleet,
    compartment: Compartment,
    body: ResponseBody,
    response_id: str,
) -> Asked:
    mailbox, owner = mailbox_of(request), owner_of(request)
    share = share_of(request.scope)
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
    looks = compartment.model.settings.pictures
    sources = await beside_the_loop(
        share.size_bytes, functools.partial(picture_sources, items, names, looks=looks)
    )
    if not sources:
        unseen = set() if looks else await beside_the_loop(share.size_bytes, left_out, items)
        return Asked(body, items, names, {}, left_out_header(unseen))
    check_pictures([source for _, source in sources], compartment.model)
    reader: PictureReader = request.app.state.pictures
    read = await reader.read([source for _, source in sources], fleet.settings.gateway, share)
    pictures: dict[int, list[bytes]] = {}
    for (place, _), picture in zip(sources, read, strict=True):
        pictures.setdefault(place, []).append(picture)
    return Asked(body, items, names, pictures)


def generate_of(asked: Asked, compartment: Compartment, cut: int) -> Generate:
    """Without the first items up to `cut`."""
    body = asked.body
    generation = body.generation()
    arguments = template_arguments(generation, compartment.model.settings.template_arguments)
    places = truncation.kept(asked.items, cut)
    said = converse(
        body.instructions,
        [asked.items[each] for each in places],
        [asked.names[each] for each in places],
        [picture for each in places for picture in asked.pictures.get(each, ())],
        looks=compartment.model.settings.pictures,
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
