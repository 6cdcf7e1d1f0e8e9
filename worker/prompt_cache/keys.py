"""Names of blocks by what they hold: the model's, and all tokens up to the block's end."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from protocol.tokens import pack

# Fewer, and a block's overhead counts; more, and what follows the last whole one, to be computed
# anew, does.
BLOCK_TOKENS: Final = 64
KEY_BYTES: Final = 16


def root_key(*parts: str) -> bytes:
    """Where the prompts of one model begin: everything but tokens that a cache depends on."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()


def chain(root: bytes, token_ids: Sequence[int], known: Sequence[bytes] = ()) -> list[bytes]:
    """The key of each whole block of a sequence, of which the first ones may be known.

    Each is made from the one before it, so that a key stands for all tokens up to its block's end.
    """
    keys = list(known)
    for begin in range(len(keys) * BLOCK_TOKENS, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        parent = keys[-1] if keys else root
        tokens = pack(list(token_ids[begin : begin + BLOCK_TOKENS]))
        keys.append(hashlib.blake2b(parent + tokens, digest_size=KEY_BYTES).digest())
    return keys


def snapshot_key(key: bytes) -> bytes:
    """Of what can't be cut into blocks, as it is at the end of this one."""
    return hashlib.blake2b(key + b"snapshot", digest_size=KEY_BYTES).digest()
