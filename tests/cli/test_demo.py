from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.cli.terminal import read_until, started
from tests.support.gateway import gone


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo puts its files."""
    # A short name, since the paths of sockets are bounded.
    path = tmp_path_factory.mktemp("d")
    monkeypatch.setenv("TMPDIR", str(path))
    return path


def left_in(folder: Path) -> list[Path]:
    """Without what libraries keep among temporary files."""
    return list(folder.glob("bh-*"))


def pids(pattern: str, text: str) -> list[int]:
    return [int(pid) for pid in re.findall(pattern, text)]


@pytest.mark.slow
def test_tells_its_story_and_leaves_nothing(folder: Path) -> None:
    with started("demo") as running:
        stdout, stderr = running.communicate(timeout=90)
    assert (running.returncode, stderr) == (0, ""), stdout
    assert "\x1b" not in stdout
    assert all(len(line) <= 80 for line in stdout.splitlines())
    (gateway_pid,) = pids(r"It serves on \S+ \(pid (\d+)\)", stdout)
    killed_pid = pids(r"SIGKILL to the worker \(pid (\d+)\)", stdout)[-1]
    (new_pid,) = pids(r"The rest came from another worker \(pid (\d+)", stdout)
    assert len({gateway_pid, killed_pid, new_pid}) == 3
    assert all(gone(pid) for pid in (gateway_pid, killed_pid, new_pid))
    assert re.search(r"Asked again without a kill: the same [\d,]+ characters", stdout)
    for moment in ("before", "loaded", "after"):
        assert stdout.count(f"   {moment} ") == 2
    assert re.search(r"^   (before|after) +0 B, since there is no process$", stdout, re.M)
    assert re.search(r"^   loaded +[\d.]+ MB, held by its process$", stdout, re.M)
    assert left_in(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "exit_status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_cleans_up_when_it_is_ended(folder: Path, number: int, exit_status: int) -> None:
    with started("demo") as running:
        gateway_pid = _read_gateway_pid(running)
        running.send_signal(number)
        _, stderr = running.communicate(timeout=60)
    # Where Ctrl-C has met code in exec(), which makes dataclasses, `python -m` ends by the signal,
    # although the exception was caught. For a shell both are the same.
    code = running.returncode
    assert (128 - code if code < 0 else code, stderr) == (exit_status, "")
    assert gone(gateway_pid)
    assert left_in(folder) == []


def test_says_what_went_wrong(folder: Path) -> None:
    with started("demo") as running:
        gateway_pid = _read_gateway_pid(running)
        read_until(running, "The first question")
        psutil.Process(gateway_pid).kill()
        _, stderr = running.communicate(timeout=60)
    assert running.returncode == 1
    assert stderr.startswith("bulkhead: The demo failed. ")
    assert "The gateway's log ends with:\n" in stderr
    assert "Started server process" in stderr
    assert left_in(folder) == []


def _read_gateway_pid(running: subprocess.Popen[str]) -> int:
    return pids(r"\(pid (\d+)\)", read_until(running, "(pid "))[0]
