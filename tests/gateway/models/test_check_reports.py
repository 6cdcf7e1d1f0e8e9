"""The reports of checks: kept, stale with their files, forgotten."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.models import check_reports
from gateway.models.check_reports import CheckReport, CheckReports, fingerprint, read_reports


def report(source: str) -> CheckReport:
    return CheckReport(
        model="m", source=source, state="done", verdict="ok", started_at=0.0, ended_at=1.0
    )


def folder_in(parent: Path, name: str = "model") -> Path:
    folder = parent / name
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "1_Pooling" / "config.json").write_text("{}")
    return folder


def test_a_fingerprint_changes_with_any_file_but_hidden_ones(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    before = fingerprint((str(folder),))
    (folder / ".DS_Store").write_text("x")
    assert fingerprint((str(folder),)) == before
    (folder / "1_Pooling" / "config.json").write_text("{ }")
    assert fingerprint((str(folder),)) != before


async def test_a_report_stays_and_becomes_stale(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    places, path = (str(folder),), tmp_path / "state" / "checks.json"
    reports = CheckReports(path)
    assert reports.status(places) is None
    await reports.add(places, await reports.fingerprint(places), report(str(folder)))
    await reports.close()
    assert [kept.stale for kept in read_reports(path)] == [False]

    (folder / "config.json").write_text("{ }")
    reports = CheckReports(path)
    await reports._start()
    await reports.look()
    status = reports.status(places)
    assert status is not None
    assert status.stale
    await reports.close()


async def test_a_report_of_files_that_changed_meanwhile_is_stale_at_once(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    places = (str(folder),)
    reports = CheckReports(tmp_path / "checks.json")
    found = await reports.fingerprint(places)
    (folder / "config.json").unlink()
    await reports.add(places, found, report(str(folder)))
    kept = reports.report(places)
    assert kept is not None
    assert kept.stale


async def test_an_incomplete_check_replaces_no_complete_one_of_the_same_files(
    tmp_path: Path,
) -> None:
    folder = folder_in(tmp_path)
    places = (str(folder),)
    reports = CheckReports(tmp_path / "checks.json")
    complete = msgspec.structs.replace(report(str(folder)), verdict="faults", faults=1)
    incomplete = msgspec.structs.replace(complete, verdict="incomplete", faults=0)
    await reports.add(places, await reports.fingerprint(places), complete)
    await reports.add(places, await reports.fingerprint(places), incomplete)
    assert reports.report(places) == complete
    (folder / "config.json").write_text("{ }")
    await reports.add(places, await reports.fingerprint(places), incomplete)
    assert reports.report(places) == incomplete


async def test_the_reports_of_a_source_are_forgotten_together(tmp_path: Path) -> None:
    folder, other = folder_in(tmp_path), folder_in(tmp_path, "other")
    reports = CheckReports(tmp_path / "checks.json")
    for places in ((str(folder),), (str(folder), str(other)), (str(other),)):
        await reports.add(places, await reports.fingerprint(places), report(places[0]))
    await reports.forget(str(folder))
    assert [kept.source for kept in read_reports(tmp_path / "checks.json")] == [str(other)]


async def test_there_are_no_more_reports_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_reports, "_MOST_REPORTS", 2)
    reports = CheckReports(tmp_path / "checks.json")
    for number in range(3):
        places = (str(folder_in(tmp_path, str(number))),)
        await reports.add(places, await reports.fingerprint(places), report(places[0]))
    sources = [Path(kept.source).name for kept in read_reports(tmp_path / "checks.json")]
    assert sources == ["1", "2"]


def test_a_damaged_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "checks.json").write_text('{"reports": [{"places": 3')
    assert read_reports(tmp_path / "checks.json") == []
