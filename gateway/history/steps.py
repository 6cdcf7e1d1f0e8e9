"""A series in steps of equal length, of which the last ones stay. No I/O and no clock here.

Times are Unix times in seconds, sizes are bytes.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import add
from typing import Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct

# Models with values of their own. Those of all others are summed.
MOST_MODELS: Final = 32
OTHERS: Final = ""

MarkKind: TypeAlias = Literal["eviction", "death", "refusal"]


class ModelSample(NamedTuple):
    """What a model holds, was promised, and has generated since the sample before."""

    held_bytes: int = 0
    floor_bytes: int = 0
    lent_bytes: int = 0
    generated_tokens: int = 0


class Sample(NamedTuple):
    """The state at a moment. `prompt_tokens` and `first_token_s` have what has come since the
    sample before: tokens of prompts, and seconds from a request's arrival to its first token.
    """

    budget_bytes: int
    spare_bytes: int
    waiting: int
    prompt_tokens: int
    first_token_s: Sequence[float]
    models: Mapping[str, ModelSample]


class StepsState(Struct, frozen=True):
    """A series as it is stored: the number of its last step, and its columns as 32-bit floats."""

    step_s: int
    last: int
    whole: dict[str, bytes]
    models: dict[str, dict[str, bytes]]


class ModelColumns(Struct):
    """A model's values, one for each step; null for a step of which nothing is known."""

    held_bytes: list[int | None]
    floor_bytes: list[int | None]
    lent_bytes: list[int | None]
    generated_tokens: list[int | None]


class Columns(Struct):
    """The values of successive steps; null for a step of which nothing is known. The first step
    begins at `begins_at`. The memory is that of the step's fullest moment, `waiting` is the most
    requests that waited, and the tokens and marks are sums. `first_token_s` is the median of the
    step, and `worst_first_token_s` its maximum; null without a first token. `others` sums the
    models that have no values of their own.
    """

    step_s: int
    begins_at: int
    budget_bytes: list[int | None]
    spare_bytes: list[int | None]
    waiting: list[int | None]
    prompt_tokens: list[int | None]
    first_token_s: list[float | None]
    worst_first_token_s: list[float | None]
    evictions: list[int | None]
    deaths: list[int | None]
    refusals: list[int | None]
    models: dict[str, ModelColumns]
    others: ModelColumns


_MEMORY: Final = ("held_bytes", "floor_bytes", "lent_bytes")
_OF_MODEL: Final = (*_MEMORY, "generated_tokens")
_MARKS: Final[dict[MarkKind, str]] = {
    "eviction": "evictions",
    "death": "deaths",
    "refusal": "refusals",
}
_TIMES: Final = ("first_token_s", "worst_first_token_s")
_COUNTS: Final = ("budget_bytes", "spare_bytes", "waiting", "prompt_tokens", *_MARKS.values())
# These are NaN where nothing is known, the other columns 0.
_UNKNOWN: Final = ("budget_bytes", *_TIMES)
_FLOAT: Final = "f"
_FLOAT_BYTES: Final = array(_FLOAT).itemsize

Column: TypeAlias = "array[float]"


class Steps:
    """The last `count` steps of `step_s` seconds each. Times may go back: the steps after them are
    forgotten then. Steps without a sample are gaps.
    """

    def __init__(self, step_s: int, count: int) -> None:
        self.step_s = step_s
        self._count = count
        # The number of the step that is open, from 1970 on.
        self._last = -1
        self._whole = {name: self._empty(name) for name in (*_COUNTS, *_TIMES)}
        self._models = {OTHERS: self._new_model()}
        self._seen: dict[str, int] = {}
        self._first_tokens = _FirstTokenTimes()

    def add(self, sample: Sample, now: float) -> None:
        slot, whole = self._open(now), self._whole
        present = {model_id: model for model_id, model in sample.models.items() if any(model)}
        held_bytes = sample.spare_bytes + sum(model.held_bytes for model in present.values())
        # False for a step without a sample, whose budget is NaN.
        if not (whole["budget_bytes"][slot] > 0 and held_bytes < self._held_bytes(slot)):
            self._record_memory(sample, present, slot)
        whole["waiting"][slot] = max(whole["waiting"][slot], sample.waiting)
        whole["prompt_tokens"][slot] += sample.prompt_tokens
        for seconds in sample.first_token_s:
            self._first_tokens.add(seconds)
            # The comparison with NaN is false.
            if not whole["worst_first_token_s"][slot] >= seconds:
                whole["worst_first_token_s"][slot] = seconds
        if sample.first_token_s:
            worst_s = whole["worst_first_token_s"][slot]
            whole["first_token_s"][slot] = min(self._first_tokens.median, worst_s)
        for model_id, model in present.items():
            columns = self._columns(model_id, present)
            columns["generated_tokens"][slot] += model.generated_tokens

    def mark(self, kind: MarkKind, now: float) -> None:
        self._whole[_MARKS[kind]][self._open(now)] += 1

    def read(self, now: float) -> Columns:
        """The steps that have ended by `now`, from the first on of which something is known."""
        end = min(int(now // self.step_s), self._last + 1)
        begin = max(self._last + 1 - self._count, 0)
        numbers = range(begin, end)
        while numbers and not self._known(numbers[0]):
            numbers = numbers[1:]
        slots = [number % self._count for number in numbers]
        known = [self._known(number) for number in numbers]
        pairs = list(zip(slots, known, strict=True))

        def whole(column: Column) -> list[int | None]:
            return [int(column[slot]) if there else None for slot, there in pairs]

        def seconds(column: Column) -> list[float | None]:
            values = (column[slot] for slot in slots)
            return [None if math.isnan(value) else round(value, 4) for value in values]

        def of_model(columns: dict[str, Column]) -> ModelColumns:
            return ModelColumns(**{name: whole(column) for name, column in columns.items()})

        return Columns(
            step_s=self.step_s,
            begins_at=numbers.start * self.step_s,
            first_token_s=seconds(self._whole["first_token_s"]),
            worst_first_token_s=seconds(self._whole["worst_first_token_s"]),
            **{name: whole(self._whole[name]) for name in _COUNTS},
            models={
                model_id: of_model(columns)
                for model_id, columns in self._models.items()
                if model_id != OTHERS and self._seen[model_id] >= begin
            },
            others=of_model(self._models[OTHERS]),
        )

    @property
    def state(self) -> StepsState:
        return StepsState(
            self.step_s,
            self._last,
            {name: column.tobytes() for name, column in self._whole.items()},
            {
                model_id: {name: column.tobytes() for name, column in columns.items()}
                for model_id, columns in self._models.items()
            },
        )

    def restore(self, state: StepsState) -> None:
        """Go on from a stored series. Raises: ValueError: it isn't one of this kind."""
        if state.step_s != self.step_s or not -1 <= state.last < 1 << 40:
            raise ValueError("its steps are others")
        if OTHERS not in state.models or len(state.models) > MOST_MODELS + 1:
            raise ValueError("its models can't be")
        whole = self._columns_of(state.whole, (*_COUNTS, *_TIMES))
        models = {
            model_id: self._columns_of(columns, _OF_MODEL)
            for model_id, columns in state.models.items()
        }
        self._last, self._whole, self._models = state.last, whole, models
        self._seen = dict.fromkeys(models.keys() - {OTHERS}, state.last)

    def _columns_of(self, stored: Mapping[str, bytes], names: Sequence[str]) -> dict[str, Column]:
        if set(stored) != set(names):
            raise ValueError("its columns are others")
        columns = {}
        for name in names:
            if len(stored[name]) != self._count * _FLOAT_BYTES:
                raise ValueError("a column of it has another length")
            column = columns[name] = array(_FLOAT, stored[name])
            if not all(0 <= value < math.inf or _may_be_unknown(value, name) for value in column):
                raise ValueError("a value of it can't be")
        return columns

    def _open(self, now: float) -> int:
        """Open the step of this time, if it isn't open. Returns its place in the columns."""
        number = int(now // self.step_s)
        if number != self._last:
            # After a step back, also the step of this time is forgotten: it was another time.
            first = self._last + 1 if number > self._last else number
            last = max(number, self._last)
            for cleared in range(max(first, last - self._count + 1), last + 1):
                self._clear(cleared % self._count)
            self._last = number
            self._first_tokens = _FirstTokenTimes()
            for model_id, seen in list(self._seen.items()):
                self._seen[model_id] = min(seen, number)
                if seen <= number - self._count:
                    self._forget(model_id)
        return number % self._count

    def _clear(self, slot: int) -> None:
        for name, column in self._whole.items():
            column[slot] = _nothing(name)
        for columns in self._models.values():
            for column in columns.values():
                column[slot] = 0.0

    def _known(self, number: int) -> bool:
        return not math.isnan(self._whole["budget_bytes"][number % self._count])

    def _held_bytes(self, slot: int) -> float:
        held_bytes = sum(columns["held_bytes"][slot] for columns in self._models.values())
        return self._whole["spare_bytes"][slot] + held_bytes

    def _record_memory(self, sample: Sample, present: Mapping[str, ModelSample], slot: int) -> None:
        self._whole["budget_bytes"][slot] = sample.budget_bytes
        self._whole["spare_bytes"][slot] = sample.spare_bytes
        for columns in self._models.values():
            for name in _MEMORY:
                columns[name][slot] = 0.0
        for model_id, model in present.items():
            columns = self._columns(model_id, present)
            for name in _MEMORY:
                columns[name][slot] += getattr(model, name)

    def _columns(self, model_id: str, present: Mapping[str, ModelSample]) -> dict[str, Column]:
        """The columns of a model. It may take the place of a model that isn't `present`."""
        if model_id not in self._models:
            if len(self._models) > MOST_MODELS:
                absent = [model_id for model_id in self._seen if model_id not in present]
                if not absent:
                    return self._models[OTHERS]
                self._forget(min(absent, key=self._seen.__getitem__))
            self._models[model_id] = self._new_model()
        if model_id != OTHERS:
            self._seen[model_id] = self._last
        return self._models[model_id]

    def _forget(self, model_id: str) -> None:
        """Add a model's values to those of the others."""
        del self._seen[model_id]
        others = self._models[OTHERS]
        for name, column in self._models.pop(model_id).items():
            others[name] = array(_FLOAT, map(add, others[name], column))

    def _new_model(self) -> dict[str, Column]:
        return {name: self._empty(name) for name in _OF_MODEL}

    def _empty(self, name: str) -> Column:
        return array(_FLOAT, [_nothing(name)]) * self._count


def _nothing(name: str) -> float:
    return math.nan if name in _UNKNOWN else 0.0


def _may_be_unknown(value: float, name: str) -> bool:
    return math.isnan(value) and name in _UNKNOWN


# Bounds of buckets are apart by this factor, so a median is right to 3 %.
_APART: Final = 1.05
_LEAST_S: Final = 0.001


class _FirstTokenTimes:
    """Seconds in buckets, for their median. However many, they take little memory."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        self._counts[round(math.log(max(_LEAST_S, seconds), _APART))] += 1

    @property
    def median(self) -> float:
        buckets = sorted(self._counts)
        half = self._counts.total() / 2
        reached = accumulate(self._counts[bucket] for bucket in buckets)
        return next(
            _APART**bucket for bucket, count in zip(buckets, reached, strict=True) if count >= half
        )
