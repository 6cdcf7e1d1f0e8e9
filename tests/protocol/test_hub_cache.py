"""The folder that a repository of a Hugging Face cache is loaded from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.config.model_folders import NotThereError, find_folder, find_model
from protocol.hub_cache import NotInCacheError, find_snapshot
from worker.load import files
from worker.system.errors import ModelError

OLD, NEW = "a" * 40, "b" * 40
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def fill(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("{}")
    return folder


def whole(folder: Path) -> Path:
    return fill(folder, "config.json", "tokenizer.json", "model.safetensors")


def points(repository: Path, revision: str) -> None:
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(revision)


def test_main_leads_to_its_snapshot_also_beside_others(tmp_path: Path) -> None:
    old, new = whole(tmp_path / "snapshots" / OLD), tmp_path / "snapshots" / NEW
    points(tmp_path, OLD)
    whole(new)
    assert find_snapshot(tmp_path) == old
    points(tmp_path, f"{NEW}\n")
    assert find_snapshot(tmp_path) == new
    # A pull that goes on has linked the first files only.
    (new / "model.safetensors").unlink()
    assert find_snapshot(tmp_path) == new


@pytest.mark.parametrize("reference", [None, NEW])
def test_without_main_the_only_whole_snapshot_is_taken(
    tmp_path: Path, reference: str | None
) -> None:
    if reference is not None:
        points(tmp_path, reference)
    fill(tmp_path / "snapshots" / "c", "config.json", "tokenizer.json", SHARDS[0])
    fill(tmp_path / "snapshots" / "d", "config.json")
    fill(tmp_path / "snapshots" / "e", "model.safetensors")
    dangling = fill(tmp_path / "snapshots" / "f", "config.json", "tokenizer.json")
    (dangling / "model.safetensors").symlink_to("../../blobs/incomplete")
    (tmp_path / "snapshots" / ".DS_Store").write_text("")
    expected = fill(tmp_path / "snapshots" / OLD, "config.json", "tokenizer.json", *SHARDS)
    assert find_snapshot(tmp_path) == expected


def test_a_folder_in_place_of_main_hides_no_model(tmp_path: Path) -> None:
    (tmp_path / "refs" / "main").mkdir(parents=True)
    expected = whole(tmp_path / "snapshots" / OLD)
    assert find_snapshot(tmp_path) == expected


def test_files_by_hand_in_the_repository_itself_are_taken(tmp_path: Path) -> None:
    whole(tmp_path)
    assert find_snapshot(tmp_path) == tmp_path
    (tmp_path / "snapshots").mkdir()
    assert find_snapshot(tmp_path) == tmp_path
    points(tmp_path, OLD)
    pulled = whole(tmp_path / "snapshots" / OLD)
    assert find_snapshot(tmp_path) == pulled


def _empty(repository: Path) -> None:
    (repository / "blobs").mkdir(parents=True)


def _parts(repository: Path) -> None:
    points(repository, NEW)
    for name in ("c", "d", "e", "f", "g"):
        fill(repository / "snapshots" / name, "config.json", SHARDS[0])


def _several(repository: Path) -> None:
    for name in (OLD, NEW):
        whole(repository / "snapshots" / name)


def _garbage(repository: Path) -> None:
    whole(repository / "snapshots" / OLD)
    points(repository, "../../models--org--other")


def _folder(repository: Path) -> None:
    (repository / "refs" / "main").mkdir(parents=True)
    fill(repository / "snapshots" / "c", "config.json")


REASONS = [
    (_folder, "its refs/main is a folder, which must be deleted, and no snapshot is whole (c)"),
    (_empty, "it has no snapshot"),
    (
        _parts,
        f"its refs/main names {NEW}, which isn't there, and no snapshot is whole "
        "(c, d, e and 2 more)",
    ),
    (_several, f"it has no refs/main, and {OLD} and {NEW} are all whole models"),
    (_garbage, "its refs/main names no revision"),
]


@pytest.mark.parametrize(("make", "reason"), REASONS)
def test_otherwise_the_reason_says_what_is_there(
    tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    make(tmp_path)
    with pytest.raises(NotInCacheError) as caught:
        find_snapshot(tmp_path)
    assert str(caught.value) == reason


def test_gateway_and_worker_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(files, "HF_HUB_CACHE", str(tmp_path))
    whole(tmp_path / "models--org--hand")
    whole(tmp_path / "models--org--old" / "snapshots" / OLD)
    points(tmp_path / "models--org--old", NEW)
    for name in ("org/hand", "org/old"):
        assert find_model(name, ()) == name
        assert find_folder(name) == files.find_folder(name)
    for make, reason in REASONS:
        name = f"org/{make.__name__.strip('_')}"
        make(tmp_path / f"models--{name.replace('/', '--')}")
        with pytest.raises(NotThereError, match="bulkhead pull") as missing:
            find_model(name, ())
        with pytest.raises(ModelError, match="bulkhead pull") as refused:
            files.find_folder(name)
        assert reason in str(missing.value)
        assert reason in str(refused.value)
