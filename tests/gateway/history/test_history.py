"""The history against a plain account of the same samples, over a day, and with odd clocks."""

from __future__ import annotations

import random
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.history.history import History, HistoryState, Span
from gateway.history.recorder import HistoryFile
from gateway.history.steps import MOST_MODELS, Columns, MarkKind, ModelSample, Sample

NOW: Final = 1_800_000_000.0
EVERY_S: Final = 10.0
DAY_S: Final = 24 * 3600.0
MB: Final = 1_000_000
GB: Final = 1 << 30
SPANS: Final[tuple[Span, ...]] = ("hour", "day")


def _sample(
    models: Mapping[str, ModelSample] | None = None,
    *,
    waiting: int = 0,
    prompt_tokens: int = 0,
    first_token_s: tuple[float, ...] = (),
) -> Sample:
    return Sample(64 * GB, 0, waiting, prompt_tokens, first_token_s, models or {})


def _holding(held_bytes: int, generated_tokens: int = 0) -> ModelSample:
    return ModelSample(held_bytes, held_bytes, 0, generated_tokens)


def _steps(history: History, span: Span = "hour", now: float = NOW) -> Columns:
    """All steps, with the one that is open at `now`."""
    return history.read(span, now + 200.0)[0]


def _total(columns: Columns, field: str) -> list[int]:
    """The sums of all models' values, step by step."""
    values = [getattr(model, field) for model in (*columns.models.values(), columns.others)]
    return [sum(item or 0 for item in step) for step in zip(*values, strict=True)]


def _world(seed: int, steps: int) -> Iterator[tuple[float, Sample]]:
    """Models that come and go, hundreds in a day and up to forty at once."""
    chance = random.Random(seed)
    names = [f"owner-{n}/a-model-with-a-long-name-{n}" for n in range(300)]
    present = set(names[:10])
    for step in range(steps):
        if chance.random() < 0.05:
            present ^= set(chance.sample(names, 2))
            while len(present) > 40:
                present.pop()
        models = {
            name: ModelSample(chance.randrange(GB), GB, chance.randrange(GB), chance.randrange(500))
            for name in sorted(present)
        }
        yield (
            NOW + step * EVERY_S,
            _sample(
                models,
                waiting=chance.randrange(20),
                prompt_tokens=chance.randrange(10_000),
                first_token_s=tuple(chance.uniform(0.01, 30) for _ in range(chance.randrange(3))),
            ),
        )


def _bytes_of(history: History) -> int:
    """The memory that a history takes: that of its double."""
    state = history.state
    tracemalloc.start()
    double = History.restored(state)
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert double.read("day", NOW) == history.read("day", NOW)
    return held_bytes


def test_a_day_is_bounded_and_coarse_steps_keep_maxima_and_sums() -> None:
    history = History()
    fullest: defaultdict[int, int] = defaultdict(int)
    tokens: defaultdict[int, int] = defaultdict(int)
    prompts: defaultdict[int, int] = defaultdict(int)
    waiting: defaultdict[int, int] = defaultdict(int)
    worst: defaultdict[int, float] = defaultdict(float)
    deaths: defaultdict[int, int] = defaultdict(int)
    now = NOW
    for now, sample in _world(1, int(DAY_S / EVERY_S)):
        step = int(now // 120)
        history.add(sample, now)
        if now % 700 == 0:
            history.mark("death", "a", now)
            deaths[step] += 1
        fullest[step] = max(fullest[step], sum(e.held_bytes for e in sample.models.values()))
        tokens[step] += sum(model.generated_tokens for model in sample.models.values())
        prompts[step] += sample.prompt_tokens
        waiting[step] = max(waiting[step], sample.waiting)
        worst[step] = max(worst[step], *sample.first_token_s, 0.0)
    assert _bytes_of(history) < MB
    for span in SPANS:
        columns, _ = history.read(span, now)
        assert len(columns.models) <= MOST_MODELS
    assert len(msgspec.json.encode(HistoryFile(history.state.packed))) < MB
    columns = _steps(history, "day", now)
    numbers = [columns.begins_at // 120 + n for n in range(len(columns.budget_bytes))]
    assert len(numbers) == 720
    assert _total(columns, "generated_tokens") == [tokens[number] for number in numbers]
    assert columns.prompt_tokens == [prompts[index] for index in numbers]
    assert columns.waiting == [waiting[number] for number in numbers]
    assert columns.deaths == [deaths[number] for number in numbers]
    assert [number or 0.0 for number in columns.worst_first_token_s] == pytest.approx(
        [worst[number] for number in numbers], abs=1e-3
    )
    assert _total(columns, "held_bytes") == pytest.approx(
        [fullest[number] for number in numbers], rel=1e-6
    )
    assert len(_steps(history, "hour", now).budget_bytes) == 360


def test_step_has_its_fullest_moment() -> None:
    """Two models that take turns never held memory together."""
    history = History()
    history.add(_sample({"a": _holding(3 * GB)}), NOW)
    history.add(_sample({"b": _holding(5 * GB)}), NOW + 2)
    history.add(_sample({"a": _holding(4 * GB)}), NOW + 4)
    columns = _steps(history)
    assert columns.models["b"].held_bytes == [5 * GB]
    assert columns.models.get("a") is None or columns.models["a"].held_bytes == [0]


def test_a_median_and_the_worst_first_token() -> None:
    history = History()
    history.add(_sample(first_token_s=(0.2, 0.3)), NOW)
    history.add(_sample(first_token_s=(9.0,)), NOW + 2)
    history.add(_sample(), NOW + 10)
    # Its bucket is above it, and no median is above the worst.
    history.add(_sample(first_token_s=(0.09,)), NOW + 20)
    columns = _steps(history)
    assert columns.worst_first_token_s == [9.0, None, 0.09]
    assert columns.first_token_s == [pytest.approx(0.3, rel=0.03), None, 0.09]


def test_open_step_is_read_once_it_has_ended() -> None:
    history = History()
    history.add(_sample(), NOW + 1)
    assert history.read("hour", NOW + 9)[0].budget_bytes == []
    assert history.read("hour", NOW + 10)[0].budget_bytes == [64 * GB]


def test_sleep_leaves_a_gap() -> None:
    history = History()
    history.add(_sample({"a": _holding(GB)}), NOW)
    history.add(_sample({"a": _holding(GB)}), NOW + 50)
    columns = _steps(history)
    assert columns.budget_bytes == [64 * GB, None, None, None, None, 64 * GB]
    assert columns.models["a"].held_bytes == [GB, None, None, None, None, GB]
    history.add(_sample({"b": _holding(GB)}), NOW + 2 * DAY_S)
    for span in SPANS:
        columns = _steps(history, span, NOW + 2 * DAY_S)
        assert columns.budget_bytes == [64 * GB]
        assert list(columns.models) == ["b"]


def test_a_clock_that_is_set_back_takes_the_later_time_along() -> None:
    history = History()
    for step in range(100):
        history.add(_sample({"a": _holding(GB, 1)}), NOW + step * 10)
        history.mark("eviction", "a", NOW + step * 10)
    back = NOW + 500
    history.add(_sample({"a": _holding(2 * GB, 7)}), back)
    columns, marks = history.read("hour", back + 10)
    assert columns.begins_at == NOW
    assert columns.models["a"].held_bytes == [GB] * 50 + [2 * GB]
    assert columns.models["a"].generated_tokens == [1] * 50 + [7]
    assert [mark.at for mark in marks] == [NOW + step * 10 for step in range(51)]
    history.add(_sample(), 1000.0)
    assert _steps(history, now=1000.0).begins_at == 1000


def test_marks_are_named_and_refusals_counted() -> None:
    history = History()
    history.add(_sample(), NOW)
    kinds: tuple[MarkKind, ...] = ("eviction", "death", "refusal", "refusal")
    for kind in kinds:
        history.mark(kind, "a", NOW + 1)
    columns, marks = history.read("hour", NOW + 10)
    assert (columns.evictions, columns.deaths, columns.refusals) == ([1], [1], [2])
    assert [(mark.kind, mark.model) for mark in marks] == [("eviction", "a"), ("death", "a")]
    for _ in range(1000):
        history.mark("death", "b", NOW + 2)
    assert len(history.read("hour", NOW + 10)[1]) == 200


@given(
    times=st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=30),
    seed=st.integers(0, 2**20),
)
def test_any_clock_gives_steps_in_order_that_survive_a_restart(
    times: list[float], seed: int
) -> None:
    history, chance = History(), random.Random(seed)
    for moment in times:
        models = {f"m{chance.randrange(60)}": _holding(chance.randrange(GB), 1) for _ in range(40)}
        history.add(_sample(models, waiting=1), NOW + moment)
        if chance.random() < 0.2:
            state = HistoryState.unpacked(history.state.packed)
            restored = History.restored(state)
            for span in SPANS:
                now = NOW + moment + 200
                assert restored.read(span, now) == history.read(span, now)
            history = restored
    for span in SPANS:
        columns, _ = history.read(span, NOW + times[-1] + 200)
        known = [number is not None for number in columns.budget_bytes]
        assert known[0], "no gap leads"
        assert known[-1], "the last sample is there"
        length = columns.begins_at + len(known) * columns.step_s
        assert columns.begins_at <= NOW + times[-1] < length
        assert len(columns.models) <= MOST_MODELS
        for model in (*columns.models.values(), columns.others):
            assert [value is not None for value in model.held_bytes] == known


def test_invalid_state_is_refused() -> None:
    history = History()
    history.add(_sample({"a": _holding(GB)}), NOW)
    state = history.state
    hour = state.spans["hour"]
    short = {**hour.whole, "waiting": b"1234"}
    endless = {**hour.whole, "waiting": bytes.fromhex("0000807f") * 360}
    negative = {**hour.whole, "waiting": bytes.fromhex("000080bf") * 360}
    for broken in (
        msgspec.structs.replace(hour, whole=short),
        msgspec.structs.replace(hour, whole=endless),
        msgspec.structs.replace(hour, whole=negative),
        msgspec.structs.replace(hour, whole={}),
        msgspec.structs.replace(hour, models={}),
        msgspec.structs.replace(hour, step_s=1),
        msgspec.structs.replace(hour, last=1 << 60),
    ):
        spans = {**state.spans, "hour": broken}
        with pytest.raises(ValueError, match="it"):
            History.restored(HistoryState(spans, []))
    with pytest.raises(ValueError, match="cut off"):
        HistoryState.unpacked(state.packed[:-20])
