"""What a response goes on from: the one before it, and items that are named by their ids."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from gateway.http.bodies import beside_the_loop, take_decoded
from gateway.http.responses.items import ItemBody, decode_items
from gateway.mailbox.entry import StoredAnswer
from gateway.mailbox.mailbox import Mailbox
from gateway.requests.share import Share
from gateway.system.refusal import Refusal

_ITEM_ID: Final = re.compile(r"[a-z]{2,3}_(?P<response>[0-9a-f]{32})(?P<place>[0-9a-f]{2,4})")
# Each is looked up in the mailbox.
_MOST_REFERENCES: Final = 256


class _Answered(Struct):
    output: list[ItemBody]


class _Known(NamedTuple):
    """An item, and what it takes as text."""

    item: ItemBody
    size_bytes: int


async def earlier_items(
    mailbox: Mailbox, owner: str, response_id: str, share: Share
) -> list[ItemBody]:
    """All that an earlier response answered, and its output.

    Raises:
        Refusal: it isn't there, it is no whole answer, or the share has no room for it.
    """
    found = await mailbox.find((owner, response_id), share, items=True)
    if found is None or found.entry.api != "responses":
        raise _refusal(
            f"there is no stored response {response_id[:200]!r}: it never was, was deleted or has "
            "expired (mailbox.keep_s); send the whole conversation as input",
        )
    if found.entry.status not in ("completed", "incomplete"):
        raise _refusal(f"{response_id!r} is {found.entry.status}: wait until it is completed")
    return await beside_the_loop(share.size_bytes, _whole, found, share)


async def resolved(
    mailbox: Mailbox, owner: str, items: list[ItemBody], share: Share
) -> list[ItemBody]:
    """The same, with what references stand for in their places.

    Raises:
        Refusal: one of them stands for nothing, or the share has no room for them all.
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
    """The response that the item belongs to, by its id; empty if it is none of ours."""
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
                raise Refusal(
                    "invalid_request_error",
                    f"{param}: there is no stored item {(item.id or '')[:100]!r}: send the item "
                    "itself.",
                    param=param,
                )
            # Each time anew: the prompt has it as often as it is named.
            share.take(found.size_bytes)
            item = found.item
        whole.append(item)
    return whole


def _whole(found: StoredAnswer, share: Share) -> list[ItemBody]:
    """What was asked, and what was answered."""
    items = decode_items(found.items, share)
    take_decoded(share, found.body)
    return [*items, *msgspec.json.decode(found.body, type=_Answered).output]


def _refusal(reason: str) -> Refusal:
    param = "previous_response_id"
    return Refusal("invalid_request_error", f"{param}: {reason}.", param=param)
