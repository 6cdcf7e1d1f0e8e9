"""What differs between two prompts: their tools, their system prompt, their messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from gateway.why.divergence import Divergence, common_length, divergence_of
from gateway.why.sections import PromptSection, Sketch
from gateway.why.swaps import Swap, swapped

DifferenceKind: TypeAlias = Literal[
    "arguments",
    "tools_reordered",
    "tools_added",
    "tools_removed",
    "tools_replaced",
    "tool_changed",
    "system_added",
    "system_removed",
    "system_changed",
    "message_changed",
    "messages_removed",
    "messages_inserted",
    "messages_summarized",
    "reasoning_dropped",
    "pictures_changed",
    "other_conversation",
]
# A first message that shares less than this part of its text begins another conversation.
_SAME: Final = 0.5
# Unless something like a clock stands there, behind so many characters that they share.
_SHARED: Final = 40
_NAMED: Final = 3
# Where a conversation goes on is looked for at so many places, the last ones.
_MOST_BEGINS: Final = 64


class PromptDifference(Struct, frozen=True):
    """A difference between the earlier prompt and this one. `section` names where it begins. The
    texts part at `place`, where perhaps one thing was `swapped` for another.
    """

    kind: DifferenceKind
    section: str
    detail: str = ""
    place: Divergence | None = None
    swap: Swap | None = None
    old: str = ""
    new: str = ""


def changes(old: Sketch, new: Sketch) -> list[PromptDifference]:
    """The differences, in the order of the prompt. Messages that only follow are none."""
    found = list(_of_arguments(old, new))
    found += _of_tools(old.tools, new.tools)
    found += _of_system(_systems(old), _systems(new))
    found += _of_messages(_turns(old), _turns(new))
    return found


def name_of(section: PromptSection, number: int) -> str:
    """The section's name. `number` counts the messages behind the system prompt from 1."""
    if section.kind == "tool":
        return f"tool {section.name}"
    if section.system and not number:
        return "system"
    return "text" if section.kind == "text" else f"message {number} ({section.name})"


def _systems(sketch: Sketch) -> Sequence[PromptSection]:
    """The system prompt: the system messages before all others."""
    others = sketch.others
    count = next((i for i, section in enumerate(others) if not section.system), len(others))
    return others[:count]


def _turns(sketch: Sketch) -> Sequence[PromptSection]:
    return sketch.others[len(_systems(sketch)) :]


def _of_arguments(old: Sketch, new: Sketch) -> Iterator[PromptDifference]:
    if old.arguments != new.arguments:
        yield PromptDifference(
            "arguments", "template arguments", old=old.arguments, new=new.arguments
        )


def _of_tools(
    old: Sequence[PromptSection], new: Sequence[PromptSection]
) -> Iterator[PromptDifference]:
    before, after = _digests(old), _digests(new)
    if before == after:
        return
    if sorted(before) == sorted(after):
        at = common_length(before, after)
        detail = f"{new[at].name} stands where {old[at].name} stood"
        yield PromptDifference("tools_reordered", "tools", detail)
        return
    names = [section.name for section in old], [section.name for section in new]
    removed = [name for name in names[0] if name not in names[1]]
    added = [name for name in names[1] if name not in names[0]]
    if added and removed:
        yield PromptDifference(
            "tools_replaced", "tools", f"{_listed(added)} for {_listed(removed)}"
        )
    elif added or removed:
        yield PromptDifference(
            "tools_added" if added else "tools_removed", "tools", _listed(added + removed)
        )
    by_name = {section.name: section for section in old}
    for section in new:
        earlier = by_name.get(section.name)
        if earlier is not None and earlier.digest != section.digest:
            yield _edited("tool_changed", name_of(section, 0), earlier, section)
            return


def _of_system(
    old: Sequence[PromptSection], new: Sequence[PromptSection]
) -> Iterator[PromptDifference]:
    if _digests(old) == _digests(new):
        return
    if not old or not new:
        yield PromptDifference("system_added" if new else "system_removed", "system")
        return
    at = common_length(_digests(old), _digests(new))
    if at < min(len(old), len(new)):
        yield _edited("system_changed", "system", old[at], new[at])
    else:
        kind: DifferenceKind = "system_added" if len(new) > len(old) else "system_removed"
        yield PromptDifference(kind, "system", "a second system message")


def _of_messages(
    old: Sequence[PromptSection], new: Sequence[PromptSection]
) -> Iterator[PromptDifference]:
    before, after = _digests(old), _digests(new)
    at = common_length(before, after)
    if at == len(old) or at == len(new):
        return  # One goes on where the other ends.
    section = name_of(new[at], at + 1)
    if at == 0 and not _same_conversation(old, new):
        yield PromptDifference("other_conversation", section)
        return
    yield _changed(old, new, at, section)


def _changed(
    old: Sequence[PromptSection], new: Sequence[PromptSection], at: int, section: str
) -> PromptDifference:
    earlier, later = old[at], new[at]
    if earlier.name == later.name and earlier.content == later.content:
        if earlier.reasoning and not later.reasoning:
            return PromptDifference("reasoning_dropped", section)
        if earlier.pictures != later.pictures:
            return PromptDifference("pictures_changed", section)
    before, after = _digests(old)[at:], _digests(new)[at:]
    if count := _goes_on_at(before, after):
        return PromptDifference("messages_removed", section, _count(count))
    if count := _goes_on_at(after, before):
        return PromptDifference("messages_inserted", section, _count(count))
    # One message in the place of several, which the rest follows.
    count = _goes_on_at(before, after[1:])
    if count > 1 or (not count and len(new) < len(old)):
        return PromptDifference("messages_summarized", section, _count(count or len(before)))
    return _edited("message_changed", section, earlier, later)


def _goes_on_at(longer: tuple[int, ...], rest: tuple[int, ...]) -> int:
    """Where the rest goes on in the longer series: where it agrees for longest, if that is to the
    end of one of them. 0: nowhere behind its begin.
    """
    begins = [begin for begin in range(1, len(longer)) if rest and longer[begin] == rest[0]]
    runs = {begin: common_length(longer[begin:], rest) for begin in begins[-_MOST_BEGINS:]}
    at = max(runs, key=lambda at: runs[at], default=0)
    return at if at and runs[at] == min(len(longer) - at, len(rest)) else 0


def _same_conversation(old: Sequence[PromptSection], new: Sequence[PromptSection]) -> bool:
    """Whether two conversations with unlike first messages are one, which was changed."""
    if _telling(old) & _telling(new) or old[0].content == new[0].content:
        return True
    place = divergence_of(old[0], new[0])
    if swapped(place) is not None and place.at >= _least(old[0], new[0]):
        return True
    return place.at >= _SAME * max(old[0].length, new[0].length)


def _telling(sections: Sequence[PromptSection]) -> set[int]:
    """The digests of the users' messages: those of a model may be the same by chance."""
    return {section.digest for section in sections if section.name == "user"}


def _least(old: PromptSection, new: PromptSection) -> int:
    return min(_SHARED, min(old.length, new.length) // 4)


def _edited(
    kind: DifferenceKind, section: str, old: PromptSection, new: PromptSection
) -> PromptDifference:
    place = divergence_of(old, new)
    if (found := swapped(place)) is None:
        return PromptDifference(kind, section, place=place)
    return PromptDifference(kind, section, "", place, *found)


def _digests(sections: Sequence[PromptSection]) -> tuple[int, ...]:
    return tuple(section.digest for section in sections)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _count(messages: int) -> str:
    return "1 message" if messages == 1 else f"{messages} messages"
