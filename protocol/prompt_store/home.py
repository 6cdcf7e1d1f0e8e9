"""The folder of a store: whether it can be trusted, and what becomes of a damaged one."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protocol.prompt_store.index import DamagedError, Index
from protocol.prompt_store.payloads import Payloads

logger = logging.getLogger(__name__)

# Nobody else's files have such names: whatever is below them may be removed.
_NAME: Final = "bulkhead-prompts"
_ASIDE: Final = f"{_NAME}.aside-"
_LOCK: Final = f"{_NAME}.lock"
_INDEX: Final = "index.sqlite"
_LOCK_S: Final = 2.0
_LOCK_POLL_S: Final = 0.01


class UntrustedError(Exception):
    """The folder must not be used; the text says why and what to do."""


class Home:
    """An opened index and its payloads."""

    def __init__(self, folder: Path) -> None:
        """Open what is in the folder, or make it. What is damaged or of another version goes.

        Raises:
            UntrustedError: it belongs to somebody else, or others may write to it.
            OSError, sqlite3.Error: it can't be opened.
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


def drop(folder: Path, index: Index) -> None:
    """Set aside what a damaged index belongs to, unless another process has done so.

    Raises OSError.
    """
    with _locked(folder):
        if index.in_place():
            _set_aside(folder)


def remove_what_was_set_aside(folder: Path, until: float) -> None:
    """As much as can be removed up to `until`, a time of the monotonic clock."""
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
    found = folder.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        raise UntrustedError(f"{folder} is a link or no folder: name the folder itself")
    if found.st_uid != os.geteuid():
        raise UntrustedError(
            f"{folder} belongs to uid {found.st_uid} and this process runs as uid {os.geteuid()}: "
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
        # A half-made one would be taken for a damaged one.
        shutil.rmtree(inside, ignore_errors=True)
        raise


def _set_aside(folder: Path) -> None:
    """Raises OSError."""
    (folder / _NAME).rename(folder / f"{_ASIDE}{secrets.token_hex(8)}")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one process opens at a time.

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
