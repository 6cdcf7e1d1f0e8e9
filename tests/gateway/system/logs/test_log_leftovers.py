from __future__ import annotations

import os
from pathlib import Path

from gateway.system.log_files import remove_leftovers, shorten_crashes
from gateway.system.state_dir import StateDir


def test_the_oldest_logs_of_models_that_are_gone_are_removed(tmp_path: Path) -> None:
    names = ["old.log.2", "kept.log.1", "kept.log", "old.log", "notes.txt", "other.log"]
    for age, name in enumerate(names):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (age, age))
    remove_leftovers(tmp_path, [tmp_path / "kept.log"], bound_bytes=200)
    assert {path.name for path in tmp_path.iterdir()} == {*names} - {"old.log.2"}
    remove_leftovers(tmp_path, [tmp_path / "kept.log"], bound_bytes=0)
    assert {path.name for path in tmp_path.iterdir()} == {"kept.log", "kept.log.1", "notes.txt"}


def test_a_folder_that_cannot_be_read_stops_nothing(tmp_path: Path) -> None:
    remove_leftovers(tmp_path / "missing", [])
    shorten_crashes(tmp_path / "missing")
    shorten_crashes(tmp_path, bound_bytes=-1)


def test_crashes_are_put_aside_while_somebody_holds_the_file(tmp_path: Path) -> None:
    path = tmp_path / "crash.log"
    with path.open("ab", buffering=0) as held:
        held.write(b"x" * 100)
        shorten_crashes(path, bound_bytes=100)
        assert path.stat().st_size == 100
        shorten_crashes(path, bound_bytes=99)
        held.write(b"new")
    assert path.read_bytes() == b"new"
    assert (tmp_path / "crash.log.1").read_bytes() == b"x" * 100


def test_no_model_writes_into_a_log_of_the_gateway(tmp_path: Path) -> None:
    folder = StateDir(tmp_path)
    own = {str(log).lower() for log in folder.own_logs}
    for model_id in ("gateway", "crash", "Gateway", "CRASH", "(spare)", "gateway.log"):
        assert str(folder.log_path(model_id)).lower() not in own
    assert folder.log_path("gateway").name == "%67ateway.log"
    assert folder.log_path("org/my model").name == "org%2Fmy model.log"
