from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from gateway.system.log_files import OLDER_FILES, RotatedFile, rotated_paths


def _write(file: RotatedFile, line: str) -> None:
    file.handle(logging.LogRecord("test", logging.INFO, "", 0, line, None, None))


def test_its_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    complaints: list[str] = []
    file = RotatedFile(path, complaints.append, file_bytes=100)
    for number in range(1000):
        _write(file, f"{number:08d}")
    file.close()
    assert sorted(tmp_path.iterdir()) == sorted(rotated_paths(path))
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    kept = "".join(
        rotated_path.read_text() for rotated_path in reversed(rotated_paths(path))
    ).split()
    assert kept == [f"{number:08d}" for number in range(1000 - len(kept), 1000)]
    assert len(kept) > 10 * OLDER_FILES
    assert complaints == []


def test_it_goes_on_after_a_writer_that_was_killed_in_mid_line(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    for before, after in (("whole\nha", "whole\nha\nnew\n"), ("whole\n", "whole\nnew\n")):
        path.write_text(before)
        file = RotatedFile(path, [].append)
        _write(file, "new")
        file.close()
        assert path.read_text() == after


def test_a_failure_is_said_once_and_writing_goes_on_after_it(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.write_text("in the way")
    complaints: list[str] = []
    file = RotatedFile(folder / "a.log", complaints.append)
    for _ in range(3):
        _write(file, "lost")
    assert len(complaints) == 1
    assert f"The log {folder / 'a.log'} can't be written, and lines are lost: " in complaints[0]
    folder.unlink()
    _write(file, "written")
    file.close()
    assert (folder / "a.log").read_text() == "written\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="it stands for a full disk")
def test_a_full_disk_costs_lines_alone() -> None:
    complaints: list[str] = []
    file = RotatedFile(Path("/dev/full"), complaints.append, file_bytes=0)
    for _ in range(3):
        _write(file, "lost")
    assert len(complaints) == 1
    assert "No space left on device" in complaints[0]


def test_unencodable_text_is_written_out(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "a.log", [].append)
    _write(file, "a\udc80b ü")
    file.close()
    assert (tmp_path / "a.log").read_text("utf-8") == "a\\udc80b ü\n"


def test_a_disk_that_is_full_at_the_end_is_said_and_no_error() -> None:
    said: list[str] = []
    file = RotatedFile(Path("/dev/full"), said.append)
    _write(file, "x")
    file.close()
    assert len(said) == 1


def test_it_is_made_again_with_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "state" / "logs" / "a.log"
    complaints: list[str] = []
    file = RotatedFile(path, complaints.append)
    _write(file, "lost with the folder")
    shutil.rmtree(tmp_path / "state")
    _write(file, "written")
    file.close()
    assert (path.read_text(), complaints) == ("written\n", [])
