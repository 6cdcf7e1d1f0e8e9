from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from prompt_toolkit.history import InMemoryHistory

from gateway.cli.chat_input import history


def _lines(path: Path) -> list[str]:
    """The newest first."""
    return list(history(path).load_history_strings())


def test_entries_stay_in_a_file_for_this_account(tmp_path: Path) -> None:
    path = tmp_path / "state" / "chat-history"
    history(path).append_string("one\ntwo")
    history(path).append_string("half \ud800")
    assert _lines(path) == ["half ?", "one\ntwo"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_long_file_keeps_its_newer_half(tmp_path: Path) -> None:
    path = tmp_path / "chat-history"
    file = history(path)
    for index in range(150):
        file.append_string(f"{index} " + "x" * 10_000)
    lines = _lines(path)
    assert [int(line.split()[0]) for line in lines] == list(range(149, 149 - len(lines), -1))
    assert 40 <= len(lines) <= 52
    assert all(text.endswith("x" * 10_000) for text in lines)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_foreign_file_in_place_of_the_history_is_left_alone(kind: str, tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "chat-history", tmp_path / "elsewhere"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(elsewhere)
    else:
        path.mkdir()
    assert isinstance(history(path), InMemoryHistory)
    assert not elsewhere.exists()
