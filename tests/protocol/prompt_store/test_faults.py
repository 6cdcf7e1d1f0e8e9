"""What is found in place of what was written."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.prompt_store.store import PromptStore
from tests.protocol.prompt_store.tree import (
    FILE,
    PLENTY,
    ROOT,
    Clock,
    bytes_on_disk,
    files,
    inside,
    written,
)


def _flip(at: int) -> Callable[[Path, Path], None]:
    def change(path: Path, _: Path) -> None:
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)

    return change


def _set_version(path: Path, _: Path) -> None:
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, 8, 2)
    path.write_bytes(content)


def _replace_by_link(path: Path, other: Path) -> None:
    # Its content would be right.
    stored = path.rename(path.with_name("kept"))
    path.symlink_to(stored)


def _replace_by_pipe(path: Path, _: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _replace_by_folder(path: Path, _: Path) -> None:
    path.unlink()
    path.mkdir()


def _link_its_folder(path: Path, _: Path) -> None:
    stored = path.parent.rename(path.parent.with_name("kept"))
    path.parent.symlink_to(stored)


_CHANGES: dict[str, Callable[[Path, Path], object]] = {
    "magic": _flip(0),
    "version": _set_version,
    "key": _flip(12),
    "length": _flip(28),
    "checksum": _flip(36),
    "first byte": _flip(52),
    "last byte": _flip(-1),
    "torn": lambda path, _: os.truncate(path, 120),
    "torn in the header": lambda path, _: os.truncate(path, 20),
    "empty": lambda path, _: os.truncate(path, 0),
    "longer": lambda path, _: path.write_bytes(path.read_bytes() + b"\0"),
    "another block's": lambda path, other: shutil.copy(other, path),
    "missing": lambda path, _: path.unlink(),
    "its folder is missing": lambda path, _: shutil.rmtree(path.parent),
    "a link": _replace_by_link,
    "its folder is a link": _link_its_folder,
    "a named pipe": _replace_by_pipe,
    "a folder": _replace_by_folder,
}


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES.keys())
def test_a_file_that_is_not_what_was_written(
    store: PromptStore,
    folder: Path,
    change: Callable[[Path, Path], object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    key, other = written(store, ROOT, 1), written(store, ROOT, 2)
    path = files(folder)[key]
    change(path, files(folder)[other])
    assert store.read(key) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(path) in caplog.text
    assert store.read(key) is None
    assert len(caplog.records) == 1
    assert not store.has(key)
    assert store.used_bytes() == FILE
    assert store.read(other) == bytes(100)
    if path.is_dir():
        # What is no file isn't removed, and costs this one block.
        path.rmdir()
    elif path.parent.is_symlink():
        path.parent.unlink()
    assert not os.path.lexists(path)
    assert written(store, ROOT, 1) == key
    assert store.read(key) == bytes(100)


def test_a_row_that_says_other_tokens(store: PromptStore, folder: Path) -> None:
    """Whoever walks down believes the index: it must not lead to another prompt's payload."""
    changes = ("token_ids = x'09000000'", "kind = 'other'", "parent = zeroblob(15) || x'01'")
    for token, change in enumerate(changes):
        key = written(store, ROOT, token)
        with contextlib.closing(sqlite3.connect(inside(folder) / "index.sqlite")) as index, index:
            index.execute(f"UPDATE block SET {change} WHERE key = ?", (key,))
        assert store.read(key) is None
        assert not store.has(key)


def _index(change: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda where: change(where / "index.sqlite")


def _no_database(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"no database" * 1000)


def _foreign(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE block (key)")


def _of_another_version(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("PRAGMA user_version = 99")


def _without_a_table(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("DROP TABLE block")


def _schema_not_utf8(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    assert content.count(b"UPDATE owner SET") == 1
    path.write_bytes(content.replace(b"UPDATE owner SET", b"\xffPDATE owner SET"))


def _folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link_instead(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("kept")))


def _whole_link(where: Path) -> None:
    where.symlink_to(where.rename(where.with_name("kept")))


_DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": _index(Path.unlink),
    "deleted with its log": lambda where: [path.unlink() for path in where.glob("index.*")],
    "no database": _index(_no_database),
    "empty": _index(lambda path: os.truncate(path, 0)),
    "cut": _index(lambda path: os.truncate(path, 8192)),
    "foreign": _index(_foreign),
    "another version's": _index(_of_another_version),
    "without a table": _index(_without_a_table),
    "a schema that isn't UTF-8": _index(_schema_not_utf8),
    "a folder": _index(_folder_instead),
    "a link": _index(_link_instead),
    "all is gone": shutil.rmtree,
    "a file in place of the folder": lambda where: (shutil.rmtree(where), where.write_text("")),
    "a link in place of the folder": _whole_link,
}


@pytest.mark.parametrize("open_meanwhile", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize("damage", _DAMAGES.values(), ids=_DAMAGES.keys())
def test_a_damaged_index(
    store: PromptStore, folder: Path, damage: Callable[[Path], object], open_meanwhile: bool
) -> None:
    for token in range(20):
        written(store, ROOT, token)
    # Otherwise much of it is in SQLite's log.
    store.close()
    if open_meanwhile:
        assert store.used_bytes() == 20 * FILE
    where = inside(folder)
    damage(where)
    beside = PromptStore(folder, PLENTY, PLENTY)
    try:
        for prompt_store in (beside, store):
            assert prompt_store.children(ROOT) == []
            assert prompt_store.obstacle() is None
        key = written(store, ROOT, 1)
        assert beside.read(key) == bytes(100)
        assert beside.used_bytes() == FILE
    finally:
        beside.close()
    if not (folder / "kept").is_dir():
        # What the lost index knew of is gone as well.
        assert bytes_on_disk(where) == FILE
    assert not list(folder.glob("*aside*"))


def test_a_folder_that_is_removed(store: PromptStore, folder: Path) -> None:
    key = written(store, ROOT, 1)
    shutil.rmtree(folder)
    assert store.read(key) is None
    assert written(store, ROOT, 1) == key
    assert store.read(key) == bytes(100)


def test_a_folder_that_cannot_be_made_again(
    store: PromptStore, folder: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    key = written(store, ROOT, 1)
    shutil.rmtree(folder)
    folder.write_text("somebody else's")
    for _ in range(3):
        assert store.read(key) is None
        assert store.children(ROOT) == []
        assert store.clear() == 0
        assert store.sweep() == 0
    assert len(caplog.records) == 1
    assert str(folder) in (store.obstacle() or "")
    folder.unlink()
    # It isn't tried at once: every try costs some calls.
    assert store.obstacle() is not None
    clock.now += 10
    assert store.obstacle() is None
    written(store, ROOT, 1)


def test_a_sweep(store: PromptStore, folder: Path) -> None:
    stored, lost = written(store, ROOT, 1), written(store, ROOT, 2)
    where = inside(folder)
    files(folder)[lost].unlink()
    (where / "00").mkdir(exist_ok=True)
    orphan = where / "00" / bytes(16).hex()
    for path in (orphan, orphan.with_name("stranger"), where / "unfinished" / "1-1-1"):
        path.write_bytes(bytes(5000))
    (folder / "bulkhead-prompts.aside-1").mkdir()
    (folder / "somebody else's").write_text("kept")
    assert store.sweep() == 3 * 8192
    assert set(files(folder)) == {stored}
    assert store.used_bytes() == FILE
    assert not list((where / "unfinished").iterdir())
    assert sorted(path.name for path in folder.iterdir()) == [
        "bulkhead-prompts",
        "bulkhead-prompts.lock",
        "somebody else's",
    ]
    assert store.read(stored) == bytes(100)


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o022])
def test_others_can_read_nothing(folder: Path, umask: int) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    before = os.umask(umask)
    store = PromptStore(folder, PLENTY, PLENTY)
    try:
        written(store, ROOT, 1)
        modes = {
            path: stat.S_IMODE(path.lstat().st_mode)
            for path in [folder, *folder.rglob("*")]
            if path.name != "unfinished"
        }
    finally:
        os.umask(before)
        store.close()
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert all(mode & 0o077 == 0 for mode in modes.values())


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_may_write_to(store: PromptStore, folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    assert f"others may write to {folder} (its mode is {mode:04o})" in (store.obstacle() or "")
    assert store.children(ROOT) == []
    assert list(folder.iterdir()) == []
    assert stat.S_IMODE(folder.stat().st_mode) == mode


def test_a_folder_that_is_a_link(store: PromptStore, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert "is a link" in (store.obstacle() or "")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else(store: PromptStore, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 54321, 54321)
    assert f"{folder} belongs to uid 54321" in (store.obstacle() or "")
    assert list(folder.iterdir()) == []
