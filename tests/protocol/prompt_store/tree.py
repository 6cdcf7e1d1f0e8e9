"""Blocks for tests: a key says all about its block, so that whoever reads one can check it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from protocol.message_base import pack
from protocol.prompt_store.payloads import KEY_BYTES, Entry, disk_bytes
from protocol.prompt_store.store import PromptStore

ROOT = bytes(KEY_BYTES)
# What a small payload takes.
FILE = disk_bytes(100)
PLENTY = 1 << 40


class Clock:
    """Stands still until it is set."""

    now = 1e9

    def __call__(self) -> float:
        return self.now


def key_of(parent: bytes, token: int) -> bytes:
    return hashlib.blake2b(parent + pack([token]), digest_size=KEY_BYTES).digest()


def payload_of(key: bytes) -> bytes:
    """Of one to three blocks of a disk, but not whole ones."""
    return (key * 1024)[: 100 + key[0] % 3 * 4096]


def block(parent: bytes, token: int, payload: bytes | None = None) -> tuple[Entry, bytes]:
    key = key_of(parent, token)
    payload = payload_of(key) if payload is None else payload
    kind = "snapshot" if key[1] % 2 else "block"
    return Entry(key, parent, pack([token]), len(payload), kind), payload


def write(
    store: PromptStore, parent: bytes, token: int, *, size: int | None = None, owner: str = "m"
) -> bytes | None:
    """The new block's key."""
    entry, payload = block(parent, token, None if size is None else bytes(size))
    return entry.key if store.write(entry, [payload], owner) else None


def written(store: PromptStore, parent: bytes, token: int, size: int = 100) -> bytes:
    key = write(store, parent, token, size=size)
    assert key is not None
    return key


def inside(folder: Path) -> Path:
    """Where the index is."""
    (found,) = folder.glob("*/index.sqlite")
    return found.parent


def files(folder: Path) -> dict[bytes, Path]:
    """The blocks' files by key."""
    return {
        bytes.fromhex(path.name): path
        for path in folder.glob("*/??/*")
        if len(path.name) == 2 * KEY_BYTES
    }


def bytes_on_disk(folder: Path) -> int:
    """Of all that isn't the index, counted by the system."""
    taken = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            if not name.startswith("index.sqlite"):
                found = Path(parent, name).lstat()
                taken += -(-found.st_size // 4096) * 4096
    return taken
