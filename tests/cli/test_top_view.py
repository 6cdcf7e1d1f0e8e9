"""What `bulkhead top` shows, without a terminal or a gateway."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from gateway.cli.output import age, tail_of
from gateway.cli.top_threads import question
from gateway.cli.top_view import BarPart, EventReading, Happening, View, bar
from gateway.http.wire.command_bodies import (
    GuessesStatus,
    MemoryStatus,
    ModelStatus,
    PromptCacheStatus,
    Status,
    WorkerStatus,
)
from tests.cli.canned import filled

URL = "http://127.0.0.1:8642"
WIDTHS = (60, 80, 200)
GB = 1_000_000_000
WORKER = filled(
    WorkerStatus,
    pid=4194304,
    footprint_bytes=3 * GB,
    granted_bytes=99_900_000,
    weight_bytes=2 * GB,
    cache_bytes=418_000_000,
    buffer_bytes=0,
    last_step_age_s=0.2,
    tokens_per_s=118.4,
)


def _model(model_id: str = "demo", **fields: Any) -> ModelStatus:
    known = {"state": "ready", "queue_depth": 0, "active_requests": 0, "restarts": 0}
    return filled(ModelStatus, id=model_id, **{**known, **fields})


def _reading(*models: ModelStatus, reason: str | None = None, **memory: Any) -> Status:
    known: dict[str, Any] = {
        "total_bytes": 16 * GB,
        "available_bytes": 6 * GB,
        "granted_bytes": 4 * GB,
        "budget_bytes": 12 * GB,
        "footprint_bytes": 3 * GB,
        "spare_bytes": GB,
        "gateway_bytes": GB,
        "other_bytes": 5 * GB,
        "stranded_bytes": GB,
        "pressure": "normal",
    }
    return filled(
        Status,
        version="1.2.3",
        pid=4194304,
        uptime_s=300.0,
        state="serving",
        memory=filled(MemoryStatus, **{**known, **memory}),
        models=list(models),
        reason=reason,
    )


def _happening(event_id: int, kind: str, model: str | None = "demo", **fields: Any) -> Happening:
    return Happening(EventReading(event_id, 0.0, kind, model), {"id": event_id, **fields})


def _view(reading: Status, *happenings: Happening) -> View:
    view = View(URL)
    view.show(reading, happenings)
    return view


def _plain(lines: list[Text]) -> list[str]:
    return [line for text in lines for line in text.plain.split("\n")]


def _everything(view: View, width: int) -> list[str]:
    parts = (view.notice(width, 99.0), view.head(width), view.rows(width), view.events(width, 50))
    return [line for part in parts for line in _plain(part)]


def test_every_holder_of_memory_is_named_and_models_are_without_the_spares() -> None:
    head = " ".join(_plain(_view(_reading()).head(80)))
    for shown in (
        "Budget  12.0 GB",
        "held 3.0 GB, granted 4.0 GB",
        "Machine 16.0 GB",
        "pressure normal",
        "models 2.0 GB",
        "spare workers 1.0 GB",
        "gateway 1.0 GB",
        "other programs 5.0 GB",
        "stranded 1.0 GB",
        "available 6.0 GB",
    ):
        assert shown in head


def test_bars_are_in_proportion() -> None:
    budget, machine = _plain(_view(_reading()).head(80))[1:3]
    assert budget.count("█") == pytest.approx(3 * budget.count("▒"), abs=2)
    assert budget.count("·") == pytest.approx(8 * budget.count("▒"), abs=7)
    assert machine.count("▒") == pytest.approx(5 * machine.count("#"), abs=4)


def test_a_worker_over_its_grant_leaves_a_full_bar() -> None:
    budget = _plain(_view(_reading(footprint_bytes=20 * GB)).head(80))[1]
    assert "·" not in budget
    assert "▒" not in budget


@given(st.lists(st.none() | st.integers(0, 2**50), min_size=1), st.integers(0, 300))
def test_a_bar_is_as_wide_as_it_should_be(sizes: list[int | None], width: int) -> None:
    parts = tuple(BarPart("█", "", "", size) for size in sizes)
    assert bar(parts, width).cell_len == width


def test_unknown_figures_are_dashes() -> None:
    unknown = dict.fromkeys(
        ("budget_bytes", "footprint_bytes", "spare_bytes", "gateway_bytes", "other_bytes"), None
    )
    view = _view(_reading(_model(worker=filled(WorkerStatus, pid=1)), pressure=None, **unknown))
    head = " ".join(_plain(view.head(80)))
    assert "held -, granted 4.0 GB" in head
    assert "models -" in head
    assert "pressure" not in head
    assert view.rows(80)[0].plain.split() == [
        "demo",
        "ready",
        "-",
        "-",
        "0",
        "-",
        "0",
        "-",
        "-",
        "0",
    ]


def test_a_model_has_its_numbers_under_the_headings() -> None:
    model = _model(
        "m",
        active_requests=32,
        oldest_active_s=12.0,
        queue_depth=100,
        oldest_waiting_s=300.0,
        restarts=3,
        lent_bytes=99_900_000,
        worker=WORKER,
    )
    view = _view(_reading(model))
    heading, row = view.head(80)[-1].plain, view.rows(80)[0].plain
    headings = [
        "model",
        "state",
        "holds",
        "lent",
        "active",
        "age",
        "waiting",
        "age",
        "tok/s",
        "restarts",
    ]
    assert heading.split() == headings
    shown = row.replace(" GB", "GB").replace(" MB", "MB").split()
    assert shown == ["m", "ready", "3.0GB", "99.9MB", "32", "12s", "100", "5m", "118", "3"]
    assert cell_len(row) == cell_len(heading)


def test_wide_screens_have_more_columns_and_narrow_ones_fewer() -> None:
    view = _view(_reading(_model(worker=WORKER)))
    wide, narrow = view.head(200)[-1].plain.split(), view.head(60)[-1].plain.split()
    assert {"pid", "floor", "wants", "weights", "caches", "buffers", "step"} <= set(wide)
    assert {"state", "holds", "active", "waiting", "tok/s"} <= set(narrow)
    assert "lent" not in narrow


@pytest.mark.parametrize(
    ("kind", "fields", "shown"),
    [
        ("lend", {"change_bytes": 2 * GB}, "2.0 GB lent: it may hold 6.0 GB; 1.0 GB free"),
        ("recall", {"change_bytes": -GB}, "1.0 GB called back: it may hold 6.0 GB; 1.0 GB free"),
    ],
)
def test_loans_are_described_in_words(kind: str, fields: dict[str, Any], shown: str) -> None:
    fields = {**fields, "lent_bytes": GB, "limit_bytes": 6 * GB, "free_bytes": GB}
    happening = Happening(EventReading(1, 0.0, kind, "m"), fields)
    assert happening.line(80).plain.endswith(f" m {shown}")


def test_totals_of_requests_and_tokens() -> None:
    first = _model("a", active_requests=2, worker=WORKER)
    second = _model("b", active_requests=1, queue_depth=4, worker=WORKER)
    prompts = PromptCacheStatus(GB, 2 * GB, 50, 31, 0.62)
    reading = msgspec.structs.replace(_reading(first, second), prompt_cache=prompts)
    shown = "3 active, 4 waiting; 237 tokens/s; prompts 1.0 GB, 2.0 GB on disk, 62% cached"
    assert f"Requests: {shown}" in _plain(_view(reading).head(100))


def test_wide_screens_show_cached_prompts() -> None:
    cached = PromptCacheStatus(418_000_000, 2 * GB, 50, 31, 0.62)
    view = _view(_reading(_model(worker=WORKER, prompt_cache=cached)))
    row = " ".join(_plain(view.rows(200))[0].split())
    assert "418 MB 2.0 GB 62%" in row
    assert _plain(view.head(200))[-1].split()[10:14] == ["prompts", "on", "disk", "cached"]


def test_wide_screens_show_the_share_of_right_guesses() -> None:
    guessing, other = _model("a", guesses=GuessesStatus(62, 38, 0.62)), _model("b")
    view = _view(_reading(guessing, other))
    assert "guesses" in _plain(view.head(200))[-1].split()
    assert ["62%" in row for row in _plain(view.rows(200))] == [True, False]


def test_a_reason_stands_under_its_model_and_is_bounded() -> None:
    view = _view(_reading(_model(state="waiting", reason="it needs 3.2 GB\nand " + "much " * 200)))
    lines = view.rows(80)[0].plain.split("\n")
    assert lines[1].startswith("  it needs 3.2 GB and much")
    assert len(lines) == 4
    assert lines[-1].endswith("…")


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_screen_or_steers_it(width: int) -> None:
    hostile = "\x1b[2J[red]模型\u202e/\ud800" + "x" * 100
    view = _view(
        _reading(
            _model(hostile, state="failed", reason=hostile, worker=WORKER, queue_depth=10_000),
            _model(
                "short", active_requests=99_999, oldest_active_s=1e7, restarts=10**9, worker=WORKER
            ),
            reason=hostile * 9,
        ),
        _happening(1, "exit", hostile, reason=hostile, expected=False),
        _happening(2, "state", None, before="ready", after=hostile, cause="operator"),
    )
    lines = _everything(view, width)
    view.show_silence(hostile * 9, 1.0)
    lines += _everything(view, width)
    assert max(map(cell_len, lines)) <= width
    assert all(line.isprintable() for line in lines)
    assert any("[red]" in line for line in lines)


def test_long_ids_keep_their_ends_apart() -> None:
    ids = [f"mlx-community/Qwen3-30B-A3B-Instruct-{bits}bit" for bits in (4, 8)]
    rows = _view(_reading(*map(_model, ids))).rows(60)
    names = [row.plain.split()[0] for row in rows]
    assert names[0].endswith("-4bit")
    assert names[1].endswith("-8bit")


@given(st.text(), st.integers(1, 40))
def test_the_tail_fits(text: str, width: int) -> None:
    tail = tail_of(text, width)
    assert cell_len(tail) <= width
    assert tail == text or text.endswith(tail[1:])


def test_last_status_stays_while_the_gateway_is_away() -> None:
    view = View(URL)
    assert _plain(view.head(80)) == [f"Bulkhead at {URL}"]
    view.show_silence("Nobody answers.", 10.0)
    view.show_silence("Nobody answers still.", 15.0)
    assert view.lost
    assert _plain(view.notice(80, 22.0)) == [
        "No answer for 12s, trying again. Nobody answers still."
    ]
    view.show(_reading(_model()), [])
    before = view.head(80), view.rows(80)
    assert not view.lost
    assert view.notice(80, 23.0) == []
    view.show_silence("Gone.", 30.0)
    assert (view.head(80), view.rows(80)) == before
    assert _plain(view.notice(80, 30.0)) == ["No answer for 0s, trying again. Gone."]


def test_warning_of_the_gateway_comes_first() -> None:
    view = _view(_reading(reason="the last starts did not end in order"))
    assert _plain(view.notice(80, 0.0)) == ["Careful: the last starts did not end in order"]


def test_events_are_shown_once_and_outlive_their_gateway() -> None:
    first, second, third = (_happening(number, "ready", pid=number) for number in (1, 2, 3))
    view = _view(_reading(), first, second)
    view.show(_reading(), [second, third])
    assert [line[8:] for line in _plain(view.events(80, 2))] == [
        " demo ready pid=2",
        " demo ready pid=3",
    ]
    view.show(_reading(), [])
    assert len(view.events(80, 50)) == 3
    assert view.events(80, 0) == []


@pytest.mark.parametrize(
    ("happening", "shown"),
    [
        (
            _happening(1, "state", before="ready", after="failed", cause="a fault", reason=None),
            "demo ready → failed: a fault",
        ),
        (
            _happening(1, "state", before="a", after="b", cause="a fault", reason="it is hung"),
            "demo a → b: it is hung",
        ),
        (
            _happening(1, "admit", granted_bytes=110_000_000, waited_s=0.25, busy=None),
            "demo admit granted=110MB waited=0.2s",
        ),
        (_happening(1, "spare", None, change="ready"), "- spare change=ready"),
    ],
)
def test_an_event_is_one_line(happening: Happening, shown: str) -> None:
    assert happening.line(80).plain[9:] == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0.4, "0s"),
        (119.0, "119s"),
        (120.0, "2m"),
        (7200.0, "2h"),
        (200000.0, "2d"),
    ],
)
def test_ages(seconds: float | None, shown: str) -> None:
    assert age(seconds) == shown


def test_questions_name_what_is_cut_off() -> None:
    idle, one, two = (_model(active_requests=number) for number in (0, 1, 2))
    assert question("kill", idle) == "Kill demo? No request is running. (y/n)"
    assert "interrupts 1 running request," in question("kill", one)
    assert "2 running requests, unless they end within drain_s" in question("unload", two)
    assert "1 running request, unless it ends within drain_s" in question("unload", one)
    assert question("restart", two).startswith("Restart demo? ")
