"""`bulkhead check`, with a gateway and without."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.cli.check import EXIT_STATUS, _print_findings
from gateway.cli.model_table import check_result
from gateway.cli.pull import PullReading, _remark_on_check
from gateway.models.check_reports import CheckReport, CheckStatus
from protocol.check import CheckFinding, SectionDone, Severity
from tests.cli.terminal import bulkhead, started
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.shapes import DEMO, without_weights


@pytest.fixture(scope="module")
def shardless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without_weights(tmp_path_factory.mktemp("models") / "shardless")


@pytest.fixture(scope="module")
def gateway(shardless: Path) -> Iterator[Gateway]:
    config = f'[memory]\nbudget = "4GB"\n[models.shardless]\npath = "{shardless}"\n'
    running = Gateway(config=config)
    yield running
    assert running.stop() == 0, running.log


def test_result_of_a_check_in_two_words() -> None:
    assert check_result(None) == "-"
    assert check_result(CheckStatus("faults", 0.0, 2, 1)) == "faults"
    assert check_result(CheckStatus("incomplete", 0.0, 0, 0)) == "incomplete"
    assert check_result(CheckStatus("ok", 0.0, 0, 0, stale=True)) == "ok, stale"


@pytest.mark.slow
def test_sections_then_findings_with_whose_they_are(gateway: Gateway) -> None:
    done = bulkhead("check", "shardless", url=gateway.url)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["files", "tokenizer", "template", "parser"]
    fault = next(index for index, line in enumerate(lines) if line.startswith("fault   files: "))
    assert lines[fault].endswith("'s)")
    assert lines[fault + 1].startswith("        -> ")
    assert lines[-1].startswith("shardless: ")
    assert "\x1b" not in done.stdout


@pytest.mark.slow
def test_json_is_the_report_of_the_gateway(gateway: Gateway) -> None:
    done = bulkhead("check", "shardless", "--json", url=gateway.url)
    assert done.returncode == 1
    answer = gateway.client.get("/admin/v1/models/shardless/check")
    assert json.loads(done.stdout) == answer.json()
    listed = gateway.client.get("/v1/models/shardless").json()["check"]
    assert listed["verdict"] == "faults"


@pytest.mark.slow
def test_an_unknown_model_has_a_status_of_its_own(gateway: Gateway) -> None:
    done = bulkhead("check", "nobody", url=gateway.url)
    assert (done.returncode, "'nobody'" in done.stderr) == (4, True)


@pytest.mark.slow
def test_a_folder_is_not_checked_by_a_gateway_that_is_named(gateway: Gateway) -> None:
    done = bulkhead("check", str(DEMO.parent), url=gateway.url)
    assert done.returncode == 4
    assert "is checked without --url and BULKHEAD_URL." in done.stderr


@pytest.mark.slow
def test_interrupt_cancels_the_check(gateway: Gateway) -> None:
    def runs() -> bool:
        return gateway.client.get("/admin/v1/models/demo/check").status_code == 200

    with started("check", "demo", url=gateway.url) as running:
        eventually(runs, START_S)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=START_S)
    assert running.returncode == 130
    assert "Cancelled" in errors
    assert gateway.events("checked")[-1]["state"] == "cancelled"


@pytest.mark.slow
def test_result_of_a_check_without_a_gateway_stays(
    shardless: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8642)) == 0:
            pytest.skip("somebody's gateway runs here")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BULKHEAD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("BULKHEAD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text('[memory]\nbudget = "4GB"\n')
    monkeypatch.chdir(shardless.parent)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(main, list(arguments))

    checked = invoke("check", "./shardless")
    assert checked.exit_code == 1, checked.output
    assert "./shardless: " in checked.stdout.splitlines()[-1]
    table = f'[models.mine]\npath = "{shardless}"\n'
    (tmp_path / "config.toml").write_text(table + '[memory]\nbudget = "4GB"\n')
    (entry,) = json.loads(invoke("list", "--json").stdout)
    assert (entry["ids"], entry["check"]["verdict"]) == (["mine"], "faults")
    heading, row = invoke("list").stdout.splitlines()
    assert (heading.split()[-1], row.split()[-1]) == ("check", "faults")
    assert "check          faults" in invoke("show", "mine").stdout
    assert invoke("check", "/nowhere/at/all").exit_code == 4
    empty = tmp_path / "empty"
    empty.mkdir()
    refused = invoke("check", str(empty))
    assert refused.exit_code == 4
    assert f"The folder {empty} is there, but holds no model" in refused.stderr


def test_a_check_that_left_sections_out_does_not_look_like_a_clean_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    left_out = SectionDone("numbers", 0.0, ran=False, summary="No time was left.")
    report = CheckReport(
        model="m", source="m", verdict="incomplete", sections=(left_out,), started_at=0.0
    )
    _print_findings(report)
    assert capsys.readouterr().out == (
        "m: Nothing wrong was found, but not everything was checked. Left out: numbers.\n"
    )
    assert EXIT_STATUS["incomplete"] == 5


def test_faults_are_printed_before_warnings_before_notes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    severities: tuple[Severity, ...] = ("note", "warning", "fault", "note", "fault")
    findings = tuple(
        CheckFinding("files", severity, f"What {number}.", "Seen.", "", "model")
        for number, severity in enumerate(severities)
    )
    report = CheckReport(model="m", source="m", verdict="faults", findings=findings, started_at=0.0)
    _print_findings(report)
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert [line.split("What ")[1][0] for line in lines] == ["2", "4", "1", "0", "3"]


def test_remark_of_a_pull_names_an_incomplete_check() -> None:
    check = CheckStatus("incomplete", 0.0, 0, 0)
    remark = _remark_on_check(
        PullReading(id="1", model="a/b", state="done", offered_as="b", check=check)
    )
    assert remark is not None
    assert "not everything was checked: see `bulkhead check b`" in remark
