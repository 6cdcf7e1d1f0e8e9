from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gateway.config.model_folders import locate
from gateway.system import file_access
from gateway.system.file_access import away, denied, is_denied, is_mounted, volume_of


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/Volumes/Models/llama", "/Volumes/Models"),
        ("/Volumes/Models/a/b", "/Volumes/Models"),
        ("/Volumes/Models", None),
        ("/media/you/Models/llama", "/media/you/Models"),
        ("/media/models/llama", None),
        ("/run/media/you/Models/llama", "/run/media/you/Models"),
        ("/Users/you/models/llama", None),
        ("Volumes/Models/llama", None),
    ],
)
def test_the_disk_of_a_path(path: str, expected: str | None) -> None:
    assert volume_of(Path(path)) == (None if expected is None else Path(expected))


def test_mounted_disk_is_known(tmp_path: Path) -> None:
    assert is_mounted(Path("/"))
    assert not is_mounted(tmp_path), "a folder that a disk has left behind"
    assert not is_mounted(tmp_path / "none")
    (tmp_path / "link").symlink_to("/")
    assert is_mounted(tmp_path / "link"), "the disk that the machine was started from"


def test_a_path_on_a_disk_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_access, "_PARENTS", ((tmp_path, 1),))
    model = tmp_path / "Models" / "llama"
    assert f"The disk {model.parent} isn't mounted" in str(away(model))
    assert locate(str(model)) == str(model), "for the load to say"
    model.parent.mkdir()
    assert away(model) is not None, "the folder that was left behind is no disk"
    model.mkdir()
    assert away(model) is None, "it is there, on whatever disk"
    other = tmp_path / "Other"
    other.symlink_to("/")
    assert away(other / "llama") is None
    with pytest.raises(ValueError, match="There is no model folder"):
        locate(str(other / "no such llama"))


def test_a_denial_and_other_failures(tmp_path: Path) -> None:
    refused = PermissionError(errno.EPERM, "Operation not permitted", "/Volumes/Models/llama")
    wrapped = ValueError("can't be read")
    wrapped.__cause__ = refused
    for error in (refused, wrapped):
        sentence = denied(error)
        assert sentence is not None
        assert sentence.startswith("The system keeps /Volumes/Models/llama from this program")
        assert "Full Disk Access" in sentence
    assert denied(PermissionError(errno.EACCES, "Permission denied", "/x")) is None
    assert denied(ValueError()) is None
    assert not is_denied(tmp_path)
    assert not is_denied(tmp_path / "none")
