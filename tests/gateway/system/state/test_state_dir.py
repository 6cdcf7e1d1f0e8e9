"""Who uses a state folder."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.system.state_dir import StateDir, StateDirError, UncleanStarts, lock_holder
from gateway.system.state_file import read_state, write_state, written_by_others
from tests.support.folders import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, since the paths of sockets are bounded."""
    with short_folder() as name:
        yield Path(name)


def test_the_holder_of_the_lock(folder: Path) -> None:
    assert lock_holder(folder) is None
    state_dir = StateDir(folder)
    state_dir.acquire()
    assert lock_holder(folder) == os.getpid()
    state_dir.release()
    assert lock_holder(folder) is None


@pytest.mark.processes
def test_a_pid_that_was_left_behind(folder: Path) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    for stale in (str(done.pid), str(os.getpid()), "", "no pid"):
        (folder / "gateway.lock").write_text(stale)
        assert lock_holder(folder) is None


def _refusal(folder: Path) -> str:
    with pytest.raises(StateDirError) as raised:
        StateDir(folder).acquire()
    return str(raised.value)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_to(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    text = _refusal(folder)
    assert f"others may write to {folder} (its mode is {mode:04o})" in text
    assert "chmod go-w" in text


@pytest.mark.parametrize("name", ["run", "logs", "workers", "prompts"])
def test_a_part_of_it_that_others_may_write_to(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name).chmod(0o777)
    assert f"others may write to {folder / name}" in _refusal(folder)


def test_a_folder_of_somebody_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert f"belongs to uid {os.getuid()}" in _refusal(folder)


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_file_that_others_may_write_to_is_not_read(
    folder: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "starts.json"
    write_state(path, UncleanStarts((1.0,)))
    path.chmod(mode)
    assert read_state(path, UncleanStarts) is None
    assert f"others may write to it (its mode is {mode:04o}): `chmod go-w {path}`" in caplog.text


def test_whose_files_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(owner: int, reader: int) -> bool:
        found = os.stat_result((stat.S_IFREG | 0o644, 0, 0, 1, owner, 0, 0, 0, 0, 0))
        monkeypatch.setattr(os, "geteuid", lambda: reader)
        return written_by_others(Path("file"), found) is not None

    assert refused(owner=501, reader=502)
    assert not refused(owner=502, reader=502)
    assert not refused(owner=0, reader=502)
    assert not refused(owner=501, reader=0), "root asks a gateway of another account"


def test_the_umask_gives_nobody_rights(folder: Path) -> None:
    state_dir = StateDir(folder)
    state_dir.lock_path.touch()
    state_dir.lock_path.chmod(0o666)
    before = os.umask(0)
    try:
        state_dir.acquire()
        write_state(state_dir.address_path, UncleanStarts())
    finally:
        os.umask(before)
    state_dir.release()
    for path in (state_dir.lock_path, state_dir.address_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_in_its_place(folder: Path) -> None:
    path = folder / "state"
    path.touch()
    assert f"{path} is no folder" in _refusal(path)


@pytest.mark.parametrize(
    "name",
    ["gateway.lock", "starts.json", "learned.new", "workers/1.json", "logs/gateway.log"],
)
@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "a named pipe"), (os.mkdir, "a folder")])
def test_other_kinds_of_files_are_obstacles(
    folder: Path, name: str, make: Callable[[Path], None], kind: str
) -> None:
    path = folder / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    make(path)
    assert f"{path} is {kind} where a file belongs: remove it" in _refusal(folder)
    assert lock_holder(folder) is None
    assert read_state(path, UncleanStarts) is None


def test_among_the_sockets(folder: Path) -> None:
    """What an earlier gateway left is removed, whatever it is; a folder is not its own."""
    (folder / "run").mkdir(mode=0o700)
    os.mkfifo(folder / "run" / "1.sock")
    state_dir = StateDir(folder)
    state_dir.acquire()
    assert not list(state_dir.sockets.iterdir())
    state_dir.release()
    (folder / "run" / "2.sock").mkdir()
    assert "run/2.sock is a folder where a file belongs" in _refusal(folder)


def test_a_name_that_is_not_utf_8(folder: Path) -> None:
    assert "not UTF-8" in _refusal(Path(os.fsdecode(os.fsencode(folder) + b"/\xff")))


def test_it_is_made_again_for_its_owner_alone(folder: Path) -> None:
    state_dir = StateDir(folder / "state")
    state_dir.acquire()
    for removed in (state_dir.path, state_dir.sockets, state_dir.workers):
        shutil.rmtree(removed, ignore_errors=True)
        assert state_dir.socket_path(1).parent.is_dir()
        write_state(state_dir.workers / "1.json", UncleanStarts())
        assert read_state(state_dir.workers / "1.json", UncleanStarts) == UncleanStarts()
        assert lock_holder(state_dir.path) == os.getpid()
    assert not list(state_dir.obstacles())
    state_dir.release()


def test_it_is_not_taken_back_from_another_gateway(folder: Path) -> None:
    first, second = StateDir(folder / "state"), StateDir(folder / "state")
    first.acquire()
    shutil.rmtree(first.path)
    second.acquire()
    with pytest.raises(OSError, match="Another gateway"):
        first.socket_path(1)
    assert second.socket_path(1)
    first.release()
    second.release()
