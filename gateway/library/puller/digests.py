"""The two checksums of the hub."""

from __future__ import annotations

import hashlib
from typing import Final, Protocol

_SHA256_DIGITS: Final = 64


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def new_digest(expected: str, size_bytes: int) -> Digest:
    """What is to become `expected`: a SHA-256, or git's SHA-1 of a blob with its header."""
    if len(expected) == _SHA256_DIGITS:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)
