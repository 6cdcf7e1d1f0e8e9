"""Figures in, lines out: what can't be measured on the machine that runs the tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from gateway.doctor.memory_check import BEGIN, END, anonymous, report
from gateway.doctor.memory_judgement import (
    AttentionFigures,
    Gauge,
    HeldMemory,
    LineVerdict,
    Machine,
    ProcessFigures,
    ReportLine,
    ReturnFigures,
    RightsFigures,
    StepFigures,
    failed,
    is_back,
    judge_attention,
    judge_join,
    judge_process,
    judge_return,
    judge_rights,
    judge_steps,
    judge_working_set,
)
from gateway.system.memory import BackEnd
from protocol.errands import AttentionPeak, Environment, JoinedArray, StepTimes
from protocol.life import MlxMemory

GB = 10**9
MB = 10**6
GIB = 1 << 30
AS_ASSUMED, DIFFERS, UNKNOWN = LineVerdict.AS_ASSUMED, LineVerdict.DIFFERS, LineVerdict.UNKNOWN


def _verdicts(lines: Iterable[ReportLine]) -> list[LineVerdict]:
    return [each.verdict for each in lines]


def _held(footprint_mb: int, active_mb: int = 0, cache_mb: int = 0) -> HeldMemory:
    memory = MlxMemory(active_bytes=active_mb * MB, cache_bytes=cache_mb * MB)
    return HeldMemory("holding", footprint_mb * MB, memory)


@pytest.mark.parametrize(
    ("imported", "holding", "dropped", "trimmed", "verdicts"),
    [
        (_held(55), _held(1056, 1000), _held(1057, 0, 1000), _held(57), [AS_ASSUMED] * 4),
        # The process is larger than on Linux, and nothing else is wrong.
        (
            _held(300),
            _held(1300, 1000),
            _held(1300, 0, 1000),
            _held(300),
            [DIFFERS, AS_ASSUMED, AS_ASSUMED, AS_ASSUMED],
        ),
        # A gigabyte beside MLX's account, which stays when all is given back.
        (
            _held(55),
            _held(2055, 1000),
            _held(2055, 0, 1000),
            _held(1055),
            [AS_ASSUMED, DIFFERS, DIFFERS, DIFFERS],
        ),
        # Memory that the footprint lacks.
        (
            _held(55),
            _held(60, 1000),
            _held(55),
            _held(55),
            [AS_ASSUMED, DIFFERS, AS_ASSUMED, AS_ASSUMED],
        ),
    ],
)
def test_a_process(
    imported: HeldMemory,
    holding: HeldMemory,
    dropped: HeldMemory,
    trimmed: HeldMemory,
    verdicts: list[LineVerdict],
) -> None:
    figures = ProcessFigures(imported, (holding,), dropped, trimmed)
    assert _verdicts(judge_process(figures, BackEnd.CPU)) == verdicts


BEFORE = Gauge(64 * GB, 3 * GB)


@pytest.mark.parametrize(
    ("meanwhile", "after", "back", "verdict"),
    [
        # Wired, and back; the available memory is the business of others then.
        (Gauge(62 * GB, 4 * GB), Gauge(40 * GB, 3 * GB), True, AS_ASSUMED),
        # Wired, and not back, although it looks available.
        (Gauge(62 * GB, 4 * GB), Gauge(64 * GB, 4 * GB), False, DIFFERS),
        # Not wired: what is available tells.
        (Gauge(63 * GB, 3 * GB), Gauge(64 * GB, 3 * GB), True, AS_ASSUMED),
        # Others may have taken it meanwhile.
        (Gauge(63 * GB, 3 * GB), Gauge(63 * GB, 3 * GB), False, UNKNOWN),
        (Gauge(63 * GB, None), Gauge(64 * GB, None), True, AS_ASSUMED),
        # It never showed, as a card's.
        (Gauge(64 * GB, 3 * GB), Gauge(64 * GB, 3 * GB), True, UNKNOWN),
    ],
)
def test_what_comes_back(
    meanwhile: Gauge, after: Gauge, verdict: LineVerdict, *, back: bool
) -> None:
    figures = ReturnFigures(GB, BEFORE, meanwhile, after, 0.2, 1.0, 10.0)
    assert is_back(figures) == back
    if not back:
        figures = msgspec.structs.replace(figures, back_s=None)
    assert judge_return("SIGKILL", figures).verdict == verdict


TIMES = StepTimes(
    active_bytes=256 * MB,
    without_limits_s=0.010,
    limit_above_s=0.010,
    limit_below_s=0.020,
    small_cache_s=0.011,
    no_cache_s=0.012,
)


@pytest.mark.parametrize(
    ("times", "back_end", "busy", "differing"),
    [
        ({}, BackEnd.METAL, 0.1, {}),
        ({"limit_below_s": 0.010}, BackEnd.CPU, 0.1, {}),
        ({"limit_below_s": 0.010}, BackEnd.METAL, 0.1, {1: DIFFERS}),
        ({"limit_above_s": 0.020}, BackEnd.METAL, 0.1, {0: DIFFERS}),
        ({"limit_above_s": 0.020}, BackEnd.METAL, 0.9, {0: UNKNOWN}),
        (
            {"small_cache_s": 0.020, "no_cache_s": 0.030},
            BackEnd.METAL,
            0.1,
            {2: DIFFERS, 3: DIFFERS},
        ),
    ],
)
def test_steps(
    times: dict[str, Any], back_end: Any, busy: float, differing: dict[int, LineVerdict]
) -> None:
    figures = StepFigures(msgspec.structs.replace(TIMES, **times), busy)
    lines = list(judge_steps(figures, back_end))
    assert len(lines) == 4
    assert {
        index: each.verdict for index, each in enumerate(lines) if each.verdict is not AS_ASSUMED
    } == differing


@pytest.mark.parametrize(
    ("head_dim", "mask", "share", "back_end", "verdict", "found"),
    [
        (64, "causal", 0.01, BackEnd.METAL, AS_ASSUMED, "computed in one kernel"),
        (128, "array", 0.01, BackEnd.METAL, AS_ASSUMED, "computed in one kernel"),
        (128, "array", 1.0, BackEnd.METAL, DIFFERS, "written out"),
        (192, "array", 1.0, BackEnd.METAL, AS_ASSUMED, "written out"),
        (256, "causal", 0.0, BackEnd.METAL, AS_ASSUMED, "higher than needed"),
        (64, "causal", 1.0, BackEnd.CPU, AS_ASSUMED, "written out"),
        (128, "array", 0.0, BackEnd.CUDA, AS_ASSUMED, "higher than needed"),
    ],
)
def test_attention(
    head_dim: int, mask: Any, share: float, back_end: Any, verdict: LineVerdict, found: str
) -> None:
    peak = AttentionPeak(int(share * 16 * MB), 16 * MB)
    line = judge_attention(AttentionFigures(head_dim, mask, peak), back_end)
    assert (line.verdict, found in line.found) == (verdict, True)


@pytest.mark.parametrize(
    ("wrong", "found"), [(0, "all of 3,000 elements are right"), (7, "7 of 3,000 elements")]
)
def test_a_large_array(wrong: int, found: str) -> None:
    line = judge_join(JoinedArray(3000, wrong))
    assert (line.verdict, found in line.found) == (AS_ASSUMED, True)


def _machine(
    back_end: Any, device: dict[str, Any], total_bytes: int, limit_mb: int | None
) -> Machine:
    environment = Environment("3.12.1", "0.32.4", "0.32.2")
    return Machine(
        "macOS 15.5, arm64", back_end, device, environment, total_bytes, 9 * GB, "normal", limit_mb
    )


@pytest.mark.parametrize(
    ("recommended_bytes", "total_bytes", "limit_mb", "verdict"),
    [
        (384 * GIB, 512 * GIB, 0, AS_ASSUMED),
        (int(10.7 * GIB), 16 * GIB, 0, AS_ASSUMED),
        (8 * GIB, 512 * GIB, 0, DIFFERS),
        (120 * GIB, 128 * GIB, 120 * 1024, AS_ASSUMED),
        (96 * GIB, 128 * GIB, 120 * 1024, DIFFERS),
        (96 * GIB, 128 * GIB, None, AS_ASSUMED),
    ],
)
def test_the_working_set_of_a_mac(
    recommended_bytes: int, total_bytes: int, limit_mb: int | None, verdict: LineVerdict
) -> None:
    device = {"max_recommended_working_set_size": recommended_bytes}
    (line,) = judge_working_set(_machine(BackEnd.METAL, device, total_bytes, limit_mb))
    assert line.verdict == verdict
    assert ("sudo sysctl" in line.found) == (not limit_mb)


@pytest.mark.parametrize(
    ("back_end", "device", "verdict"),
    [
        (BackEnd.CUDA, {"total_memory": 85 * GB}, AS_ASSUMED),
        (BackEnd.CPU, {}, AS_ASSUMED),
        (BackEnd.CUDA, {}, DIFFERS),
        (BackEnd.METAL, {}, DIFFERS),
    ],
)
def test_the_working_set_elsewhere(
    back_end: Any, device: dict[str, Any], verdict: LineVerdict
) -> None:
    (line,) = judge_working_set(_machine(back_end, device, 64 * GB, None))
    assert line.verdict == verdict


def test_rights() -> None:
    own, child, first = judge_rights(RightsFigures(30 * MB, "it is exiting", "not permitted"))
    assert _verdicts((own, child, first)) == [AS_ASSUMED, DIFFERS, AS_ASSUMED]
    assert "not permitted" in first.found


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("can't open /Users/ann/models/x.py, line 3", "can't open (path), line 3"),
        ("no file '/Volumes/Ann B/model' here", "no file (path) here"),
        ("in ~/models and /private/tmp", "in (path) and (path)"),
        ("below /Users/Ann Bee/models/x", "below (path)"),
        ("on anns-mac.local, or anns-mac", "on (host), or (host)"),
        ("9 tokens/s, 1 and/or 2, a ratio of 1.5", "9 tokens/s, 1 and/or 2, a ratio of 1.5"),
    ],
)
def test_nothing_private_is_in_the_report(text: str, left: str) -> None:
    assert anonymous(text, "anns-mac.local", "/Users/Ann Bee") == left


def test_a_report_is_a_block_of_plain_text() -> None:
    machine = _machine(BackEnd.METAL, {"device_name": "Apple M2 Ultra"}, 137 * GB, 0)
    lines = [failed("steps", "can't open /Users/ann/x"), ReportLine("rights", "a", "b", AS_ASSUMED)]
    begin, *body, end = report(machine, lines).splitlines()
    assert (begin, end) == (BEGIN, END)
    text = "\n".join(body)
    assert "mlx 0.32.4, mlx-lm 0.32.2" in text
    assert "device_name Apple M2 Ultra" in text
    assert "iogpu.wired_limit_mb 0" in text
    assert body[-2] == ("[unknown] steps: it can be measured. Found: failed: can't open (path).")
    assert body[-1] == "[as assumed] rights: a. Found: b."
    assert text.isprintable() or text.replace("\n", "").isprintable()
