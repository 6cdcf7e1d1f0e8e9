"""The folder of a prompt store: opens it if it can be used, and removes the leftovers in it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import plistlib
import random
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

from protocol.prompt_store.index import DamagedError, Index, Transaction
from protocol.prompt_store.payloads import Payloads, blocks_of, key_of

logger = logging.getLogger(__name__)

# Only prompt stores make files whose names begin so. They may remove all that is below such names.
_NAME: Final = "bulkhead-prompts"
_ASIDE: Final = f"{_NAME}.aside-"
_LOCK: Final = f"{_NAME}.lock"
_INDEX: Final = "index.sqlite"
_LOCK_S: Final = 2.0
_LOCK_POLL_S: Final = 0.01
# So many files or rows are looked at in one transaction, while other processes can't write.
_SWEPT_AT_ONCE: Final = 64

T = TypeVar("T")


class UntrustedError(Exception):
    """The folder must not be used. The text says why, and how to mend that."""


class Home:
    """An open store: its index and its payloads."""

    def __init__(self, folder: Path) -> None:
        """Open the store in the folder, or make one. A store that is damaged, or of another
        version, is replaced.

        Raises:
            UntrustedError: the folder belongs to another account, or others may write to it.
            OSError, sqlite3.Error: the store can't be opened.
        """
        _make(folder)
        inside = folder / _NAME
        with _locked(folder):
            try:
                self.index = _open(inside)
            except DamagedError as error:
                logger.warning("The stored prompts in %s are dropped: %s", inside, error)
                _set_aside(folder)
                self.index = _open(inside)
        self.payloads = Payloads(inside)
        if sys.platform == "darwin":
            with contextlib.suppress(OSError):
                exclude_from_backups(inside)


def drop(folder: Path, index: Index) -> None:
    """Set a store with a damaged index aside, unless another process has done so.

    Raises OSError.
    """
    with _locked(folder):
        if index.in_place():
            _set_aside(folder)


def remove_set_aside(folder: Path, until: float) -> None:
    """Remove damaged stores until the time `until` of the monotonic clock."""
    for path in folder.glob(f"{_ASIDE}*"):
        if time.monotonic() >= until:
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _make(folder: Path) -> None:
    """Raises UntrustedError or OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        raise UntrustedError(f"{folder} is a link or no folder: name the folder itself")
    if status.st_uid != os.geteuid():
        raise UntrustedError(
            f"{folder} belongs to uid {status.st_uid} and this process runs as uid {os.geteuid()}: "
            "choose another folder, or give it to this account with chown"
        )
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UntrustedError(
            f"others may write to {folder} (its mode is {mode:04o}): `chmod go-w` it"
        )
    if mode != 0o700:
        folder.chmod(0o700)


def _open(inside: Path) -> Index:
    """Raises DamagedError, OSError or sqlite3.Error."""
    try:
        inside.mkdir(mode=0o700)
    except FileExistsError:
        if not stat.S_ISDIR(inside.lstat().st_mode):
            raise DamagedError("it is no folder") from None
        return Index(inside / _INDEX, new=False)
    try:
        return Index(inside / _INDEX, new=True)
    except BaseException:
        # A half-made store would be taken for a damaged store.
        shutil.rmtree(inside, ignore_errors=True)
        raise


def _set_aside(folder: Path) -> None:
    """Raises OSError."""
    (folder / _NAME).rename(folder / f"{_ASIDE}{secrets.token_hex(8)}")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: only one process at a time opens a store or sets it aside.

    Raises:
        OSError: the lock can't be had in time.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(folder / _LOCK, flags, 0o600)
    try:
        until = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
                time.sleep(_LOCK_POLL_S)
            else:
                break
        yield
    finally:
        os.close(descriptor)


def sweep(home: Home, until: float) -> int:
    """Remove the leftovers of killed processes: files without a row, and rows without a file. The
    sweep ends at the time `until` of the monotonic clock. Returns how many bytes on disk were
    freed.

    Raises OSError or sqlite3.Error.
    """
    freed = home.payloads.remove_abandoned()
    folders = dict(home.payloads.folders())
    # Each sweep takes the folders in another order, so that in time each folder is reached.
    for first in random.sample(range(256), 256):
        known = home.index.keys(first)
        files = list(folders[first].iterdir()) if first in folders else []
        unknown = [path for path in files if key_of(path.name) not in known]
        lost = list(known - {key_of(path.name) for path in files})
        for some_paths in _batches(unknown):
            if time.monotonic() >= until:
                return freed
            with home.index.transaction() as transaction:
                freed += sum(_remove(transaction, path) for path in some_paths)
        for some_keys in _batches(lost):
            if time.monotonic() >= until:
                return freed
            with home.index.transaction() as transaction:
                for key in some_keys:
                    if home.payloads.identity(key) is None:
                        transaction.remove(key)
    return freed


def _remove(transaction: Transaction, path: Path) -> int:
    """Remove a file unless it has a row by now. Returns how many bytes on disk were freed."""
    key = key_of(path.name)
    if key is not None and transaction.has(key):
        return 0
    with contextlib.suppress(FileNotFoundError):
        if path.is_symlink() or not path.is_dir():
            taken = blocks_of(path.lstat().st_size)
            path.unlink()
            return taken
    return 0


def _batches(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), _SWEPT_AT_ONCE):
        yield items[start : start + _SWEPT_AT_ONCE]


# The attribute of `tmutil addexclusion`, which moves along with the folder, and its value, a binary
# property list. tmutil itself may be refused for want of Full Disk Access.
_ATTRIBUTE: Final = b"com.apple.metadata:com_apple_backup_excludeItem"
_VALUE: Final = plistlib.dumps("com.apple.backupd", fmt=plistlib.FMT_BINARY)


def exclude_from_backups(folder: Path, library: str | None = None) -> None:
    """`library` None: the system's, which must be that of macOS.

    Raises: OSError: the folder's file system has no attributes, or the folder may not be changed.
    """
    setxattr = ctypes.CDLL(library, use_errno=True).setxattr
    setxattr.argtypes = (
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p),
        *(ctypes.c_size_t, ctypes.c_uint32, ctypes.c_int),
    )
    if setxattr(os.fsencode(folder), _ATTRIBUTE, _VALUE, len(_VALUE), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
