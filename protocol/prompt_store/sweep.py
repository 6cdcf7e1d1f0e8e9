"""Files that nothing knows of, and rows without a file: what killed processes leave behind."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

from protocol.prompt_store.home import Home
from protocol.prompt_store.index import Transaction
from protocol.prompt_store.payloads import blocks_of, key_of

# Other processes can't write while so many are looked at.
_BATCH: Final = 64

T = TypeVar("T")


def sweep(home: Home, until: float) -> int:
    """Remove both up to `until`, a time of the monotonic clock: the bytes on disk that are free.

    Raises OSError or sqlite3.Error.
    """
    freed = home.payloads.remove_abandoned()
    folders = dict(home.payloads.folders())
    # What isn't reached this time may be reached the next.
    for first in random.sample(range(256), 256):
        known = home.index.keys(first)
        files = list(folders[first].iterdir()) if first in folders else []
        strangers = [path for path in files if key_of(path.name) not in known]
        lost = list(known - {key_of(path.name) for path in files})
        for some in _batches(strangers):
            if time.monotonic() >= until:
                return freed
            with home.index.transaction() as transaction:
                freed += sum(_remove(transaction, path) for path in some)
        for some_keys in _batches(lost):
            if time.monotonic() >= until:
                return freed
            with home.index.transaction() as transaction:
                for key in some_keys:
                    if home.payloads.identity(key) is None:
                        transaction.remove(key)
    return freed


def _remove(transaction: Transaction, path: Path) -> int:
    """It may have been given a row meanwhile."""
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
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]
