"""The page of `doctor --mac`: its rows in short here, and the whole of it by the command."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from click.testing import CliRunner

from gateway.cli import doctor
from gateway.doctor import errands as process
from gateway.doctor import mac, mac_memory, mac_processes
from gateway.doctor.errands import Probe, ProbeError
from gateway.doctor.finding import Observation
from gateway.doctor.mac import PROBES, MacProbe, Row, anonymous, line, rows
from gateway.system.memory import footprint
from protocol.errands import (
    AttentionPeak,
    ComparedArray,
    Compute,
    Hold,
    Import,
    Imported,
    JoinArrays,
    MeasureAttention,
    Multiply,
    Rate,
    StepTimes,
    TimeSteps,
)
from protocol.life import MlxMemory
from tests.cli.terminal import bulkhead

ROOT = Path(__file__).parents[2]
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

    def test_attention_on_a_cpu_writes_its_scores_out(self, probe: Probe) -> None:
        if probe.ask(Import(), Imported).back_end != "cpu":
            pytest.skip("a GPU may have one kernel for it")
        peak = probe.ask(MeasureAttention(64, "array"), AttentionPeak)
        assert peak.grown_bytes == pytest.approx(peak.scores_grown_bytes, rel=0.2)

    def test_a_joined_array_is_compared(self, probe: Probe) -> None:
        joined = probe.ask(JoinArrays(300 * 64 * 256 * 128 - 1), ComparedArray)
        assert (joined.elements, joined.wrong) == (300 * 64 * 256 * 128, 0)

    def test_a_product_of_many_rows_is_compared(self, probe: Probe) -> None:
        found = probe.ask(Multiply(5000), ComparedArray)
        assert found.elements == 5000 * 64
        assert found.wrong == 0

    def test_steps_are_counted(self, probe: Probe) -> None:
        assert probe.ask(Compute(0.1), Rate).steps_per_s > 0

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


def _probe(name: str, look: Callable[[float], Iterator[Observation]]) -> MacProbe:
    return MacProbe(name, "it is so", "gateway/doctor/mac.py", look)


def _seen(_within_s: float) -> Iterator[Observation]:
    yield Observation("it was so", True)


def test_failed_probe_leaves_the_others(worker: Callable[[str], None]) -> None:
    worker("raise SystemExit('no GPU, says /Users/ann/x.py')")

    def defect(_within_s: float) -> Iterator[Observation]:
        raise ZeroDivisionError("by a time of 0")
        yield

    probes = (
        _probe("limits", mac_memory.look_at_limits),
        _probe("defect", defect),
        _probe("fine", _seen),
    )
    limits, failed, fine = rows(probes, LONG_S)
    assert limits.seen == "not here: no GPU, says (path)"
    assert failed.seen == "failed: ZeroDivisionError: by a time of 0"
    assert (limits.holds, failed.holds, fine.holds) == (None, None, True)
    assert line(fine) == "| fine | holds | it is so | it was so | gateway/doctor/mac.py |"


def test_the_time_of_all_has_an_end() -> None:
    (row,) = rows((_probe("late", _seen),), 0.0)
    assert row.seen == "not here: the probes before it took all of the time"


def test_a_cell_breaks_no_row() -> None:
    assert line(Row("a|b", "c", "d", False, "e")) == "| a/b | **differs** | c | d | e |"


def test_each_row_names_code_that_is_there() -> None:
    for probe in (*PROBES, doctor._UPGRADE):
        for path in probe.relied_on_by.split(", "):
            assert list(ROOT.glob(path)), path


def test_the_page_and_its_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mac, "PROBES", (_probe("first", _seen),))
    monkeypatch.setattr(mac, "head", lambda: iter(("### Head",)))
    monkeypatch.setattr(doctor, "_UPGRADE", _probe("last", _seen))
    monkeypatch.setattr(doctor, "end_in_order", lambda: None)
    page = CliRunner().invoke(doctor.doctor_command, ["--mac"])
    assert (page.exit_code, page.output.splitlines()[0]) == (0, "### Head")
    assert [text[:8] for text in page.output.splitlines()[1:]] == ["| first ", "| last |"]
    shown = CliRunner().invoke(doctor.doctor_command, ["--mac", "--json"])
    assert json.loads(shown.output)["probes"][1] == {
        "probe": "last",
        "assumed": "it is so",
        "seen": "it was so",
        "holds": True,
        "relied_on_by": "gateway/doctor/mac.py",
    }


def test_little_memory_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mac_memory, "_SHARE", 1e-6)
    with pytest.raises(ProbeError, match="too little memory"):
        mac_memory.room_bytes(10**9)


class TestMemory:
    def test_mapped_pages_are_in_no_footprint(self) -> None:
        (seen,) = mac_memory.look_at_mapped_file(LONG_S)
        found = re.search(r"footprint \+([\d.]+) (\w?B)", seen.text)
        assert found is not None
        assert found[2] != "GB"
        # Where memory can't be locked, the row isn't judged.
        assert seen.holds is not False, seen.text

    def test_memory_that_stays_taken_differs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As the wired pages of a killed process have stayed on some Macs."""
        monkeypatch.setattr(mac_memory, "_WATCHED_S", 0.2)
        readings = [0, *(100 * MB for _ in range(1000))]
        monkeypatch.setattr(
            mac_memory,
            "host_memory",
            lambda: SimpleNamespace(available_bytes=10**9, wired_bytes=readings.pop(0)),
        )
        seen = mac_memory._returned("SIGKILL", 100 * MB, Probe.kill, LONG_S)
        assert seen.holds is False
        assert "not back after" in seen.text

    @pytest.mark.slow
    def test_each_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mac_memory, "_TENTH", 1e-2)
        ends = list(mac_memory.look_at_return(LONG_S))
        assert [end.text.partition(",")[0] for end in ends] == [
            "an orderly end",
            "SIGTERM",
            "SIGKILL",
        ]


class TestProcesses:
    @pytest.mark.parametrize(("gui", "holds"), [(125, True), (112, True), (5, False)])
    def test_launchd_is_asked_for_each_domain(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gui: int, *, holds: bool
    ) -> None:
        program = tmp_path / "launchctl"
        cases = f'"print gui/"*) exit {gui};; managername) echo Background'
        program.write_text(f'#!/bin/sh\ncase "$*" in {cases}; esac')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        (seen,) = mac_processes.look_at_launchctl(LONG_S)
        assert seen == Observation(
            f"gui {gui}, user 0, system 0, in a session of the kind Background", holds
        )

    def test_environments_of_ones_own(self) -> None:
        (seen,) = mac_processes.look_at_environment(LONG_S)
        assert seen.text.startswith("own Python shown, sh ")
        assert seen.holds

    def test_text_alone_and_in_a_batch(self) -> None:
        (seen,) = mac_processes.look_at_greedy_text(LONG_S)
        assert re.fullmatch(r"\d of 8 texts of 100 tokens are the same", seen.text)


@pytest.mark.slow
def test_the_command() -> None:
    done = bulkhead("doctor", "--mac", within_s=330)
    assert (done.returncode, done.stderr) == (0, "")
    head, _, table = done.stdout.partition("| --- | --- | --- | --- | --- |\n")
    assert head.startswith("### Bulkhead ")
    cells = [text.split(" | ") for text in table.splitlines()]
    assert {len(cell) for cell in cells} == {5}
    names = [values[0].removeprefix("| ") for values in cells]
    assert sorted(set(names)) == sorted(probe.name for probe in (*PROBES, doctor._UPGRADE))
    assert "failed:" not in table
    assert "8 of 8 streams had the same text" in table
