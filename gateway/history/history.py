"""The last hour in short steps and the last day in long ones. No I/O and no clock here."""

from __future__ import annotations

import zlib
from collections import deque
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from gateway.history.steps import Columns, MarkKind, Sample, Steps, StepsState

Span: TypeAlias = Literal["hour", "day"]

# The length of a step in seconds, and the number of steps.
_SPANS: Final[dict[Span, tuple[int, int]]] = {"hour": (10, 360), "day": (120, 720)}
_MARKS: Final = 200
_LONGEST_NAME: Final = 1000
# More than any history takes. A damaged file could unfold to any size.
_LARGEST_BYTES: Final = 2_000_000


class HistoryMark(Struct, frozen=True):
    """An eviction or a death: the Unix time in seconds, and the model."""

    at: float
    kind: MarkKind
    model: str


class HistoryState(Struct, frozen=True):
    """A history as it is stored."""

    spans: dict[str, StepsState]
    marks: list[HistoryMark]

    @property
    def packed(self) -> bytes:
        """Takes some milliseconds for a full history."""
        return zlib.compress(msgspec.msgpack.encode(self), 1)

    @classmethod
    def unpacked(cls, packed: bytes) -> HistoryState:
        """Raises: ValueError, zlib.error: this is no history."""
        unfolding = zlib.decompressobj()
        content = unfolding.decompress(packed, _LARGEST_BYTES)
        if not unfolding.eof:
            raise ValueError("it is cut off, or too large")
        return msgspec.msgpack.decode(content, type=cls)


class History:
    """Its size is bounded. Refusals may be many, so they are only counted. Of
    evictions and deaths the last ones stay, with their time and model.
    """

    def __init__(self) -> None:
        self._spans = {span: Steps(*size) for span, size in _SPANS.items()}
        self._marks: deque[HistoryMark] = deque(maxlen=_MARKS)

    def add(self, sample: Sample, now: float) -> None:
        self._forget_after(now)
        for steps in self._spans.values():
            steps.add(sample, now)

    def mark(self, kind: MarkKind, model: str, now: float) -> None:
        self._forget_after(now)
        for steps in self._spans.values():
            steps.mark(kind, now)
        if kind != "refusal":
            self._marks.append(HistoryMark(now, kind, model[:_LONGEST_NAME]))

    def read(self, span: Span, now: float) -> tuple[Columns, list[HistoryMark]]:
        """The steps of a span that have ended by `now`, and the marks since the first of them."""
        columns = self._spans[span].read(now)
        return columns, [mark for mark in self._marks if columns.begins_at <= mark.at <= now]

    @property
    def state(self) -> HistoryState:
        spans: dict[str, StepsState] = {span: steps.state for span, steps in self._spans.items()}
        return HistoryState(spans, list(self._marks))

    @classmethod
    def restored(cls, state: HistoryState) -> History:
        """Raises: ValueError: the state is none of a history of this kind."""
        history = cls()
        if set(state.spans) != set(_SPANS) or len(state.marks) > _MARKS:
            raise ValueError("its spans are others")
        for span, steps in history._spans.items():
            steps.restore(state.spans[span])
        history._marks.extend(state.marks)
        return history

    def _forget_after(self, now: float) -> None:
        """Forget marks of a time that, as it turns out, hasn't come."""
        while self._marks and self._marks[-1].at > now:
            self._marks.pop()
