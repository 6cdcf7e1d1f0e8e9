"""A disk, or this process, runs out of something."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
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
    write,
    written,
)
from tests.support.folders import short_folder
from tests.support.limits import no_descriptors
from tests.support.platforms import LINUX, linux_only

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    where = tmp_path / "disk"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "none", str(where)]
    if not LINUX or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can make a small disk")
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("no file system may be mounted here")
    yield where
    subprocess.run(["umount", "--lazy", str(where)], check=True)


@pytest.mark.processes
def test_a_full_disk(small_disk: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    folder = small_disk / "prompts"
    store = PromptStore(folder, PLENTY, PLENTY, clock=clock)
    try:
        keys = [key for token in range(40) if (key := write(store, ROOT, token, size=MIB // 8))]
        assert 5 < len(keys) < 16
        assert len(caplog.records) == 1
        # Nothing of what failed is left, and what was stored is there.
        assert set(files(folder)) == set(keys)
        assert store.used_bytes() == bytes_on_disk(folder)
        assert all(store.read(key) == bytes(MIB // 8) for key in keys)
        assert store.clear("nobody") == 0
        freed = store.clear()
        assert freed == len(keys) * (MIB // 8 + 4096)
        assert store.used_bytes() == bytes_on_disk(folder) == 0
        # It rests for a minute.
        assert write(store, ROOT, 1, size=100) is None
        clock.now += 60
        written(store, ROOT, 1)
    finally:
        store.close()


@pytest.mark.processes
def test_a_disk_that_others_filled_to_the_last_byte(small_disk: Path, clock: Clock) -> None:
    """There is no room to say in the index that files are gone."""
    folder = small_disk / "prompts"
    store = PromptStore(folder, PLENTY, PLENTY, clock=clock)
    try:
        keys = [written(store, ROOT, token, size=MIB // 16) for token in range(8)]
        store.close()
        store.used_bytes()
        with (
            (small_disk / "theirs").open("wb", buffering=0) as theirs,
            contextlib.suppress(OSError),
        ):
            while True:
                theirs.write(bytes(4096))
        assert shutil.disk_usage(small_disk).free == 0
        assert all(store.read(key) == bytes(MIB // 16) for key in keys)
        assert write(store, ROOT, 99, size=100) is None
        assert store.clear() == len(keys) * (MIB // 16 + 4096)
        assert store.used_bytes() == bytes_on_disk(folder) == 0
    finally:
        store.close()


@pytest.mark.processes
def test_a_disk_that_is_full_at_the_start(small_disk: Path, clock: Clock) -> None:
    with (small_disk / "theirs").open("wb", buffering=0) as theirs, contextlib.suppress(OSError):
        while True:
            theirs.write(bytes(4096))
    folder = small_disk / "prompts"
    store = PromptStore(folder, PLENTY, PLENTY, clock=clock)
    try:
        for _ in range(3):
            assert write(store, ROOT, 1, size=100) is None
            assert store.clear() == 0
            clock.now += 10
        assert not list(folder.glob("*.aside*"))
        (small_disk / "theirs").unlink()
        clock.now += 60
        written(store, ROOT, 1)
        assert store.used_bytes() == FILE
    finally:
        store.close()


def test_files_that_may_not_be_so_long(store: PromptStore, folder: Path) -> None:
    stored = written(store, ROOT, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        assert write(store, ROOT, 2, size=2 * MIB) is None
        assert store.read(stored) == bytes(100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert set(files(folder)) == {stored}
    assert bytes_on_disk(folder) == FILE
    written(store, ROOT, 2, size=2 * MIB)


def test_an_index_that_cannot_grow(store: PromptStore, folder: Path) -> None:
    """Wherever it fails, a file and its row are there together."""
    keys = {written(store, ROOT, 0)}
    log = inside(folder) / "index.sqlite-wal"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    failures = 0
    for page in range(30):
        # Less than a page at a time: some of these end between the two transactions of a write.
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + page * 2048, hard))
        try:
            key = write(store, ROOT, 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert set(files(folder)) == keys | {key} - {None}
        assert {child.key for child in store.children(ROOT)} == set(files(folder))
        if key is not None:
            break
        failures += 1
    assert 2 < failures < 29


@linux_only("limits of a running process are Linux's")
def test_no_descriptors(store: PromptStore, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored = written(store, ROOT, 1)
    beside = PromptStore(folder, PLENTY, PLENTY)
    with no_descriptors(os.getpid()):
        for _ in range(2):
            assert write(store, ROOT, 2) is None
            # It is still there: nobody could look.
            assert store.read(stored) is None
            assert store.has(stored)
            assert beside.read(stored) is None
    assert len(caplog.records) <= 3
    assert store.read(stored) == bytes(100)
    written(store, ROOT, 2)
    beside.close()


@contextlib.contextmanager
def _as_somebody(folder: Path) -> Iterator[None]:
    """Root may do anything: as an account that owns the folder."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(folder, 54321, 54321)
    os.seteuid(54321)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_may_not_be_written_to(caplog: pytest.LogCaptureFixture) -> None:
    with short_folder() as name, _as_somebody(Path(name)):
        folder = Path(name) / "prompts"
        store = PromptStore(folder, PLENTY, PLENTY)
        try:
            key = written(store, ROOT, 1)
            inner = files(folder)[key].parent
            for path in (inner, inner.parent, folder):
                path.chmod(0o500)
            for token in range(2, 300):
                # A key in a folder that isn't there yet, and one in a folder that is.
                assert write(store, ROOT, token) is None
            assert store.read(key) == bytes(100)
            store.clear()
            assert files(folder)
            assert len(caplog.records) <= 2
            for path in (inner, inner.parent, folder):
                path.chmod(0o000)
            assert store.read(key) is None
            folder.chmod(0o700)
            inner.parent.chmod(0o700)
            inner.chmod(0o700)
            assert store.has(key) or store.obstacle() is not None
        finally:
            for path in (folder, inner.parent, inner):
                path.chmod(0o700)
            store.close()
