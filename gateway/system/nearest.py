"""What somebody meant who has named what isn't there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

# Comparing takes the product of the lengths, and names come from clients.
_LONGEST: Final = 100
_LEAST_PART: Final = 3


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was most likely meant, if any is alike."""
    if len(name) > _LONGEST:
        return None
    return next(iter(difflib.get_close_matches(name.lower(), list(known), 1)), None)


def nearest_model(name: str, known: Iterable[str]) -> str | None:
    """The same of models' ids, which people shorten: whatever its case, without what is before the
    last slash, or its beginning alone.
    """
    if len(name) > _LONGEST:
        return None
    # Of several that are one but for their case or their owner, the first is as good as any.
    ids: dict[str, str] = {}
    for each in known:
        ids.setdefault(each.lower(), each)
        ids.setdefault(_tail(each.lower()), each)
    wanted = _tail(name.lower())
    if wanted in ids:
        return ids[wanted]
    if found := nearest(wanted, ids):
        return ids[found]
    if len(wanted) >= _LEAST_PART:
        longer = (each for each in ids if wanted in each or each in wanted)
        if found := min(longer, key=lambda each: abs(len(each) - len(wanted)), default=None):
            return ids[found]
    return None


def alike(name: str, known: Iterable[str]) -> list[str]:
    """Models' ids that are alike, the likeliest first."""
    if len(name) > _LONGEST:
        return []
    ids = {each.lower(): each for each in known}
    found = [ids[each] for each in difflib.get_close_matches(name.lower(), list(ids))]
    first = nearest_model(name, ids.values())
    return list(dict.fromkeys(found if first is None else [first, *found]))


def suggestion(found: str | None) -> str:
    """A sentence to be put behind another one, or nothing."""
    return "" if found is None else f" Did you mean {found!r}?"


def _tail(name: str) -> str:
    return name.rpartition("/")[2] or name
