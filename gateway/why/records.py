"""The requests that are remembered, within bounds: in memory alone, by their callers."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from itertools import takewhile
from typing import Final

from gateway.why.record import CacheEvent, RequestRecord
from gateway.why.sections import PromptSection

# So many requests of one caller for one model, and so many of all.
_MOST_EACH: Final = 256
_MOST: Final = 1024
_MOST_BYTES: Final = 16 << 20
# The largest request, as a part of that: it is not to drive out all others.
_LARGEST: Final = 0.25
_MOST_CLEARS: Final = 64


class _Kept:
    """The sections of one owner. Those that several requests have are there once."""

    def __init__(self) -> None:
        self.sections: dict[int, PromptSection] = {}
        self.uses: Counter[int] = Counter()


class Records:
    """The requests that came last, oldest first. Nobody's requests are compared with another's.

    `most_bytes` bounds the memory of all. Call all methods on the event loop.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self.bytes_ = 0
        self._most_bytes = most_bytes
        self._records: OrderedDict[int, RequestRecord] = OrderedDict()
        self._each: Counter[tuple[str, str]] = Counter()
        self._kept: dict[str, _Kept] = {}
        self._last = 0
        self._clears: deque[tuple[str | None, CacheEvent]] = deque(maxlen=_MOST_CLEARS)

    def __len__(self) -> int:
        return len(self._records)

    def known(self, owner: str) -> dict[int, PromptSection]:
        """The sections of an owner's requests, by their digests."""
        kept = self._kept.get(owner)
        return {} if kept is None else kept.sections

    def add(self, record: RequestRecord) -> bool:
        """Remember a request. Returns whether it is small enough for that."""
        sections_bytes = sum(section.bytes_ for section in record.sketch.sections)
        if sections_bytes + record.bytes_ > self._most_bytes * _LARGEST:
            return False
        self._last += 1
        self._records[self._last] = record
        each = record.owner, record.model
        self._each[each] += 1
        self.bytes_ += record.bytes_
        kept = self._kept.setdefault(record.owner, _Kept())
        for section in record.sketch.sections:
            kept.uses[section.digest] += 1
            if kept.sections.setdefault(section.digest, section) is section:
                self.bytes_ += section.bytes_ if kept.uses[section.digest] == 1 else 0
        if self._each[each] > _MOST_EACH:
            self._drop(next(n for n, r in self._records.items() if (r.owner, r.model) == each))
        while len(self._records) > _MOST or self.bytes_ > self._most_bytes:
            self._drop(next(iter(self._records)))
        return True

    def find(self, name: str, owner: str | None = None) -> RequestRecord | None:
        """The last request with this id, or whose answer has this id; of this owner, if one is
        given.
        """
        # A request without an answer has an empty id of one.
        names = {name, _without_prefix(name)} - {""}
        return next(
            (
                record
                for record in reversed(self._records.values())
                if (record.id in names or record.answer in names) and owner in (None, record.owner)
            ),
            None,
        )

    def before(self, record: RequestRecord) -> list[RequestRecord]:
        """The requests of the same caller that came before this one, oldest first."""
        earlier = takewhile(lambda other: other is not record, self._records.values())
        return [other for other in earlier if other.owner == record.owner]

    def cleared(self, model: str | None, at: float) -> None:
        """Note that the cached prompts of a model were cleared; None: of all models."""
        self._clears.append((model, CacheEvent(at, "cleared", "")))

    def clears(self, model: str) -> list[CacheEvent]:
        """The clears of a model's cached prompts."""
        return [clear for of, clear in self._clears if of in (None, model)]

    def forget(self, owner: str | None = None) -> None:
        """Forget the requests of an owner; None: all requests."""
        for number, record in list(self._records.items()):
            if owner in (None, record.owner):
                self._drop(number)

    def _drop(self, number: int) -> None:
        record = self._records.pop(number)
        each = record.owner, record.model
        self._each[each] -= 1
        if not self._each[each]:
            del self._each[each]
        self.bytes_ -= record.bytes_
        kept = self._kept[record.owner]
        for section in record.sketch.sections:
            kept.uses[section.digest] -= 1
            if not kept.uses[section.digest]:
                del kept.uses[section.digest]
                self.bytes_ -= kept.sections.pop(section.digest).bytes_
        if not kept.sections and not any(r.owner == record.owner for r in self._records.values()):
            del self._kept[record.owner]


def _without_prefix(name: str) -> str:
    """The request's id in the id of an answer: `msg_ID`, `chatcmpl-ID`, `cmpl-ID`."""
    for prefix in ("msg_", "chatcmpl-", "cmpl-"):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name
