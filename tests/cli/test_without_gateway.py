"""The commands about models on disks, where no gateway runs."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.cli.child_gateway import temporary_gateway
from gateway.cli.client import KeyRefusedError
from gateway.cli.pull import OutlookReading, PullReading, progress_line, time_left
from gateway.system.state_dir import StateDir
from tests.cli.terminal import started
from tests.gateway.library.test_library import cached
from tests.support.gateway import START_S, eventually
from tests.support.hub import Hub
from tests.support.pulls import left, model_files
from tests.support.shapes import DEMO

NAME, SLOW = "org/small", "org/slow"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    small = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
    with Hub({NAME: small, SLOW: model_files(shard_bytes=3_000_000)}) as running:
        yield running


@pytest.fixture(autouse=True)
def alone(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8642)) == 0:
            pytest.skip("somebody's gateway runs here")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BULKHEAD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("BULKHEAD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text('[memory]\nbudget = "4GB"\n')


def invoke(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin)


def test_pull_list_show_and_rm(tmp_path: Path) -> None:
    pulled = invoke("pull", NAME)
    assert pulled.exit_code == 0, pulled.output
    assert pulled.stdout.startswith(f"{NAME} is there (")
    assert "It will fit" in pulled.stderr
    (entry,) = json.loads(invoke("list", "--json").stdout)
    assert (entry["source"], entry["ids"], entry["problem"]) == (NAME, ["small"], None)
    assert invoke("list").stdout.splitlines()[0].split()[0] == "model"
    assert "small" in invoke("show", "small").stdout
    assert invoke("show", "nobody").exit_code == 4
    assert invoke("rm", "small", stdin="n\n").exit_code == 1
    assert f"{NAME} is removed" in invoke("rm", "small", "--yes").stdout
    assert left(tmp_path / "cache") == []
    assert invoke("list", "--json").stdout.strip() == "[]"


def test_folders_that_are_not_listed_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copytree(DEMO, tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    assert json.loads(invoke("list", "--json").stdout) == []
    for name, source in (
        ("demo", DEMO),
        ("./here", tmp_path / "here"),
        ("here", tmp_path / "here"),
    ):
        shown = json.loads(invoke("show", name, "--json").stdout)
        assert (shown["source"], shown["ids"]) == (str(source.resolve()), [])
    assert invoke("show", "./empty").exit_code == 4
    assert invoke("rm", "./here", "--yes").exit_code != 0


def test_pull_of_a_missing_model_fails() -> None:
    failed = invoke("pull", "org/nothing")
    assert (failed.exit_code, "There is no model org/nothing" in failed.stderr) == (1, True)
    assert invoke("pull", "nonsense").exit_code == 1
    assert invoke("pull", NAME, "--url", "http://127.0.0.1:9").exit_code == 3


def test_ctrl_c_leaves_the_part_and_no_process(hub: Hub, tmp_path: Path) -> None:
    hub.rate = 2e5
    with started("pull", SLOW) as running:
        eventually(
            lambda: any(text.endswith(".incomplete") for text in left(tmp_path / "cache")), START_S
        )
        running.send_signal(signal.SIGINT)
        assert running.wait(120) == 130
        assert running.stderr is not None
        assert "Cancelled" in running.stderr.read()
    hub.rate = None
    # Who still pulled it would have locked it.
    assert invoke("pull", SLOW).exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_ended_command_removes_the_folder_of_its_gateway(
    hub: Hub,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    folder = tmp_path_factory.mktemp("d")
    monkeypatch.setenv("TMPDIR", str(folder))
    hub.rate = 2e5
    with started("pull", SLOW) as running:
        eventually(lambda: list(folder.glob("bh-*/state/address.json")), START_S)
        running.send_signal(number)
        assert running.wait(START_S) == 128 + number
    hub.rate = None
    assert list(folder.glob("bh-*")) == []


def test_ctrl_c_ends_a_command_without_a_client_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gateway.cli.estimate.read_draft", interrupt)
    ended = invoke("estimate", "demo")
    assert (ended.exit_code, ended.stderr) == (130, "")


def test_temporary_gateway_ends_with_a_killed_command(hub: Hub, tmp_path: Path) -> None:
    hub.rate = 2e5
    with started("pull", SLOW) as running:
        eventually(
            lambda: any(text.endswith(".incomplete") for text in left(tmp_path / "cache")), START_S
        )
        children = psutil.Process(running.pid).children(recursive=True)
        assert any("--temporary" in child.cmdline() for child in children)
        running.kill()
        assert psutil.wait_procs(children, START_S)[1] == []
    hub.rate = None


def test_temporary_gateway_leaves_the_state_folder_to_serve(hub: Hub, tmp_path: Path) -> None:
    hub.rate = 2e5
    with started("pull", SLOW):
        eventually(
            lambda: any(text.endswith(".incomplete") for text in left(tmp_path / "cache")), START_S
        )
        lock = StateDir(tmp_path / "state")
        lock.acquire()
        lock.release()
    hub.rate = None


def test_temporary_gateway_refuses_requests_without_its_key() -> None:
    with temporary_gateway() as gateway:
        assert gateway.models() == []
        with pytest.raises(KeyRefusedError):
            gateway.with_key(None).models()


def test_rm_without_a_gateway_fails_while_the_lock_is_held(tmp_path: Path) -> None:
    assert invoke("pull", NAME).exit_code == 0
    lock = StateDir(tmp_path / "state")
    lock.acquire()
    refused = invoke("rm", "small", "--yes")
    lock.release()
    assert (refused.exit_code, "which may have the model loaded" in refused.stderr) == (1, True)


@pytest.mark.parametrize(
    ("reading", "line"),
    [
        (
            PullReading(
                id="1",
                model="a/b:4bit",
                state="pulling",
                repository="a/b-4bit",
                done_bytes=1_000_000_000,
                total_bytes=4_000_000_000,
                bytes_per_s=50e6,
                seconds_left=60.0,
                outlook=OutlookReading(True, "It will fit."),
            ),
            "a/b-4bit [######                  ] 1.0 GB of 4.0 GB, 50.0 MB/s, 1 min left",
        ),
        (
            PullReading(id="1", model="a/b", state="preparing", reason="the hub is busy"),
            "a/b: the hub is busy",
        ),
        (
            PullReading(
                id="1",
                model="a/b",
                state="pulling",
                done_bytes=0,
                total_bytes=100,
                reason="nothing came for 30 s",
            ),
            "a/b [                        ] 0 B of 100 B, nothing came for 30 s",
        ),
    ],
)
def test_the_line_of_progress(reading: PullReading, line: str) -> None:
    assert progress_line(reading) == line


def test_time_left() -> None:
    shown = [time_left(number) for number in (0.4, 59.0, 61.0, 3599.0, 7800.0)]
    assert shown == ["0 s", "59 s", "1 min", "1 h 0 min", "2 h 10 min"]


def test_a_model_that_is_found_is_estimated_by_its_id(tmp_path: Path) -> None:
    cached(tmp_path / "cache", "org/Same")
    found = json.loads(invoke("estimate", "Same", "--json").stdout)
    by_source = json.loads(invoke("estimate", "org/Same", "--json").stdout)
    assert found["floor_bytes"] == by_source["floor_bytes"] > 1_000_000
    unknown = invoke("estimate", "Sam")
    assert (unknown.exit_code, "no model folder Sam" in unknown.stderr) == (4, True)
