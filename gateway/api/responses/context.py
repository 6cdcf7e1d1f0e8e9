"""What a response goes on from: the one before it, and items that are named by their ids."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

from gateway.api.bodies import beside_the_loop
from gateway.api.responses.items import ItemBody, decode_items
from gateway.dispatch.refusal import Refusal
from gateway.mailbox.entry import Found
from gateway.mailbox.mailbox import Mailbox

_ITEM_ID: Final = re.compile(r"(?:msg|rs|fc)_(?P<response>[0-9a-f]{32})(?P<place>[0-9a-f]{2,4})")
# Each is looked up in the mailbox.
_MOST_REFERENCES: Final = 256


class _Answered(Struct):
    output: list[ItemBody]


async def earlier_items(mailbox: Mailbox, owner: str, response_id: str) -> list[ItemBody]:
    """All that an earlier response answered, and its output.

    Raises:
        Refusal: it isn't there, or it is no whole answer.
    """
    found = await mailbox.find((owner, response_id), items=True)
    if found is None or found.entry.api != "responses":
        raise _refusal(
            f"there is no stored response {response_id[:200]!r}: it never was, was deleted or has "
            "expired (mailbox.keep_s); send the whole conversation as input",
        )
    if found.entry.status not in ("completed", "incomplete"):
        raise _refusal(f"{response_id!r} is {found.entry.status}: wait until it is completed")
    return [*await _items(found), *_output(found)]


async def resolved(mailbox: Mailbox, owner: str, items: list[ItemBody]) -> list[ItemBody]:
    """The same, with what references stand for in their places.

    Raises:
        Refusal: one of them stands for nothing.
    """
    if all(each.kind != "item_reference" for each in items):
        return items
    outputs: dict[str, list[ItemBody]] = {}
    whole = []
    for index, item in enumerate(items):
        if item.kind == "item_reference":
            item = await _referred(mailbox, owner, item.id or "", f"input[{index}].id", outputs)
        whole.append(item)
    return whole


async def _referred(
    mailbox: Mailbox, owner: str, item_id: str, param: str, outputs: dict[str, list[ItemBody]]
) -> ItemBody:
    if (named := _ITEM_ID.fullmatch(item_id)) is not None:
        response_id = f"resp_{named['response']}"
        if response_id not in outputs and len(outputs) < _MOST_REFERENCES:
            found = await mailbox.find((owner, response_id), items=True)
            items = [] if found is None else [*_output(found), *await _items(found)]
            outputs[response_id] = items
        for each in outputs.get(response_id, ()):
            if each.id == item_id:
                return each
    raise Refusal(
        "invalid_request_error",
        f"{param}: there is no stored item {item_id[:100]!r}: send the item itself.",
        param=param,
    )


async def _items(found: Found) -> list[ItemBody]:
    return await beside_the_loop(len(found.items), decode_items, found.items)


def _output(found: Found) -> list[ItemBody]:
    return msgspec.json.decode(found.body, type=_Answered).output


def _refusal(reason: str) -> Refusal:
    param = "previous_response_id"
    return Refusal("invalid_request_error", f"{param}: {reason}.", param=param)
