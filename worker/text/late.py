"""System messages behind the beginning, for templates that have no place for them there.

Agents send such messages in mid-conversation. To move one to the front would have all that follows
computed anew, in every turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from protocol.pictures import Picture
from protocol.prompts import ChatMessage

_PROBE: Final[list[dict[str, Any]]] = [
    {"role": "system", "content": "probed 1"},
    {"role": "user", "content": "probed 2"},
    {"role": "system", "content": "probed 3"},
    {"role": "assistant", "content": "probed 4"},
    {"role": "user", "content": "probed 5"},
    {"role": "system", "content": "probed 6"},
]
_BETWEEN: Final = "\n\n"
_IN_PLACE: Final = re.compile(".*".join(re.escape(each["content"]) for each in _PROBE), re.DOTALL)


def takes_late(render: Callable[[list[dict[str, Any]]], str]) -> bool:
    """Whether a template has system messages where they stand."""
    try:
        return _IN_PLACE.search(render(_PROBE)) is not None
    except Exception:
        # It refuses them, in whatever way.
        return False


def as_users(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """The same, with one system message at most, which is the first.

    Each later one is marked, and joins what the user said, or a tool gave, before it. Many
    templates want users and assistants to alternate; and behind a tool's result a new question of
    the user's would be the end of a turn, of which some templates drop what was thought.
    """
    # Of each message what joins it; joined once, as there may be tens of thousands.
    groups: list[list[ChatMessage]] = []
    # The last group is marked, and nothing else.
    alone = False
    for each in messages:
        before = groups[-1][0].role if groups else None
        if each.role == "system" and before not in (None, "system"):
            each = ChatMessage("user", f"<system_message>\n{each.content}\n</system_message>")
            joins = before in ("user", "tool")
            alone = alone or not joins
        else:
            joins = (alone and each.role == "user") or each.role == before == "system"
            alone = False
        if joins:
            groups[-1].append(each)
        else:
            groups.append([each])
    return [_joined(each) if len(each) > 1 else each[0] for each in groups]


def _joined(group: list[ChatMessage]) -> ChatMessage:
    begin = 0
    pictures: list[Picture] = []
    for each in group:
        pictures += (
            msgspec.structs.replace(picture, at=picture.at + begin) for picture in each.pictures
        )
        begin += len(each.content) + len(_BETWEEN)
    content = _BETWEEN.join(each.content for each in group)
    return msgspec.structs.replace(group[0], content=content, pictures=tuple(pictures))
