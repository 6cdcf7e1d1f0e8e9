"""Measurements in real processes: in short here, and at length with the command."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gateway.config.settings import Flags
from gateway.doctor import errands as process
from gateway.doctor import memory_measuring as measuring
from gateway.doctor.errands import Probe, ProbeError
from gateway.doctor.finding import Severity
from gateway.doctor.installation import Installation
from gateway.doctor.memory_check import BEGIN, END, CheckPart, MemoryCheck, looked_at
from gateway.doctor.memory_judgement import ReportLine
from gateway.system.memory import footprint
from protocol.errands import (
    AttentionPeak,
    Drop,
    Hold,
    Import,
    Imported,
    JoinArrays,
    JoinedArray,
    MeasureAttention,
    StepTimes,
    TimeSteps,
    Trim,
)
from protocol.life import MlxMemory
from tests.cli.terminal import bulkhead

MB = 10**6
LONG_S = 120.0


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    with Probe(LONG_S) as probe:
        assert probe.environment().mlx_version
        yield probe


class TestProbe:
    def test_memory_shows_in_the_footprint_and_in_mlx(self, probe: Probe) -> None:
        imported = probe.ask(Import(), Imported)
        assert "device_name" in imported.device
        before = footprint(probe.pid).current_bytes
        for size in (60 * MB, 120 * MB):
            memory = probe.ask(Hold(size), MlxMemory)
            assert memory.active_bytes == pytest.approx(size, rel=0.01)
            held = footprint(probe.pid).current_bytes - before
            assert held == pytest.approx(size, rel=0.1)
        assert probe.ask(Drop(), MlxMemory).active_bytes < MB
        assert probe.ask(Trim(), MlxMemory).cache_bytes == 0
        assert footprint(probe.pid).current_bytes - before < 12 * MB

    def test_attention_on_a_cpu_writes_its_scores_out(self, probe: Probe) -> None:
        if probe.ask(Import(), Imported).back_end != "cpu":
            pytest.skip("a GPU may have one kernel for it")
        peak = probe.ask(MeasureAttention(64, "array"), AttentionPeak)
        assert peak.grown_bytes == pytest.approx(peak.scores_grown_bytes, rel=0.2)

    def test_a_joined_array_is_compared(self, probe: Probe) -> None:
        joined = probe.ask(JoinArrays(300 * 64 * 256 * 128 - 1), JoinedArray)
        assert (joined.elements, joined.wrong) == (300 * 64 * 256 * 128, 0)

    def test_steps_are_timed_under_each_kind_of_limit(self, probe: Probe) -> None:
        times = probe.ask(TimeSteps(0.2), StepTimes)
        assert times.active_bytes > 10 * MB
        assert min(times.without_limits_s, times.limit_below_s, times.no_cache_s) > 0

    def test_it_ends_with_its_pipe(self) -> None:
        probe = Probe(LONG_S)
        probe.environment()
        assert probe.end()
        assert not psutil.pid_exists(probe.pid)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Another program as the worker."""
    path = tmp_path / "worker.py"
    monkeypatch.setattr(process, "WORKER", path)

    def write(code: str) -> None:
        path.write_text(code)

    return write


@pytest.mark.parametrize(
    ("code", "within_s", "reason"),
    [
        ("raise RuntimeError('no GPU.')", LONG_S, "RuntimeError: no GPU"),
        ("import os; os.kill(os.getpid(), 11)", LONG_S, "died by SIGSEGV"),
        ("import time; time.sleep(60)", 0.5, "longer than 0.5 s"),
    ],
)
def test_why_there_is_no_answer(
    worker: Callable[[str], None], code: str, within_s: float, reason: str
) -> None:
    worker(code)
    began = time.monotonic()
    with pytest.raises(ProbeError, match=reason), Probe(within_s) as probe:
        probe.environment()
    assert not psutil.pid_exists(probe.pid)
    assert time.monotonic() - began < LONG_S


def test_a_part_that_fails_keeps_none_of_the_others(
    worker: Callable[[str], None], tmp_path: Path
) -> None:
    worker("raise SystemExit('no GPU, says /Users/ann/x.py')")
    check = MemoryCheck()
    found = list(check.look(Installation(Flags(state_dir=tmp_path), {})))
    failures = [each for each in found if each.severity is not Severity.OK]
    assert [each.subject for each in failures] == [
        "process",
        "return",
        "return",
        "steps",
        "attention",
    ]
    assert all("failed: no GPU, says /Users/ann/x.py" in each.evidence for each in failures)
    assert {each.subject for each in found} - {each.subject for each in failures} == {"rights"}
    text = check.report()
    assert text.count("no GPU, says (path)") == 5
    assert "MLX could not be asked" in text


def test_a_defect_in_a_part_is_a_line() -> None:
    def look(_within_s: float) -> Iterator[ReportLine]:
        raise ZeroDivisionError("by a time of 0")
        yield

    (line,) = looked_at(CheckPart("steps", 1.0, look), 1.0)
    assert line.found == "failed: ZeroDivisionError: by a time of 0"
    (line,) = looked_at(CheckPart("steps", 1.0, look), 0.0)
    assert line.found == "failed: the parts before it took all of the time"


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_what_a_process_held_and_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, *, killed: bool
) -> None:
    monkeypatch.setattr(measuring, "_MOST_BYTES", 80 * MB)
    monkeypatch.setattr(measuring, "_WATCHED_S", 1.0)
    figures = measuring.measure_return(LONG_S, killed=killed)
    assert figures.held_bytes == pytest.approx(80 * MB, rel=0.1)
    assert figures.exit_s < LONG_S


def test_no_memory_is_taken_where_there_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_SHARE", 1e-6)
    with pytest.raises(ProbeError, match="too little memory"):
        measuring.measure_return(LONG_S, killed=True)


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    done = bulkhead(
        "doctor", "--memory", "--json", "--state-dir", str(tmp_path / "state"), within_s=170
    )
    answer = json.loads(done.stdout)
    measured = [each for each in answer["findings"] if each["check"] == "measured memory"]
    parts = {each["subject"] for each in measured}
    assert parts == {"working set", "imports", "account", "rights", "return", "steps", "attention"}
    begin, *body, end = answer["memory_report"]
    assert (begin, end) == (BEGIN, END)
    assert len(body) == 4 + len(measured)
    assert str(tmp_path) not in "".join(body)
