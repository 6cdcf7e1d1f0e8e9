"""The keys of a sequence's blocks.

The key of a block stands for the model, the cache salt, and all tokens and pictures up to the end
of the block. The salt keeps the prompts of API keys apart: `gateway/access/caller.py` makes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from protocol.message_base import pack
from protocol.prompt_store.payloads import KEY_BYTES
from protocol.prompt_store.store import PromptStore

# Shorter blocks would cost more overhead. With longer blocks, more tokens would lie behind the last
# whole block, and be computed anew.
BLOCK_TOKENS: Final = 64


class ContentMark(NamedTuple):
    """A content that token ids don't tell, such as a picture: it begins at the token number
    `place`, and `digest` is its hash.
    """

    place: int
    digest: bytes


@dataclass(frozen=True)
class Path:
    """The `keys` of a sequence's whole blocks, under the `root` key of the model. The first
    `stored` blocks are on disk. Snapshots are on disk at the depths `stored_snapshots`, and are to
    be made at the depths `boundaries`. Depths are in blocks. `marks` are the sequence's.
    """

    root: bytes
    keys: tuple[bytes, ...]
    stored: int = 0
    stored_snapshots: tuple[int, ...] = ()
    boundaries: tuple[int, ...] = ()
    marks: tuple[ContentMark, ...] = ()

    def to(self, token_ids: Sequence[int]) -> Path:
        """The path of `token_ids`, which begin with the tokens of this path."""
        return replace(self, keys=tuple(chain(self.root, token_ids, self.keys, self.marks)))

    def to_depth(self, depth: int) -> Path:
        """The first `depth` blocks of this path."""
        return replace(self, keys=self.keys[:depth])


class Paths:
    """Finds the paths of one model's sequences in the index of stored blocks. Thread-safe."""

    def __init__(
        self, model_root: bytes, store: PromptStore | None, *, needs_snapshots: bool
    ) -> None:
        self._model_root = model_root
        self._store = store
        self._needs_snapshots = needs_snapshots

    @property
    def needs_boundaries(self) -> bool:
        return self._needs_snapshots

    def find(
        self,
        token_ids: Sequence[int],
        salt: str,
        boundaries: Sequence[int] = (),
        marks: tuple[ContentMark, ...] = (),
    ) -> Path:
        """The path of these tokens. Sequences with different salts share no blocks, and sequences
        with different `marks` share the blocks before these. `boundaries` are in tokens, and are
        rounded down to whole blocks.
        """
        root = root_key(self._model_root.hex(), salt)
        keys = chain(root, token_ids, marks=marks)
        depths = sorted({boundary // BLOCK_TOKENS for boundary in boundaries})
        wanted = tuple(depth for depth in depths if 0 < depth <= usable_depth(len(token_ids)))
        store = self._store
        if store is None:
            return Path(root, tuple(keys), boundaries=wanted, marks=marks)
        stored = 0
        while stored < len(keys) and store.has(keys[stored]):
            stored += 1
        snapshots: tuple[int, ...] = ()
        if self._needs_snapshots:
            deepest_first = range(min(stored, usable_depth(len(token_ids))), 0, -1)
            stored_depths = (
                depth for depth in deepest_first if store.has(snapshot_key(keys[depth - 1]))
            )
            snapshots = tuple(depth for depth in [next(stored_depths, 0)] if depth)
        return Path(root, tuple(keys), stored, snapshots, wanted, marks)


def usable_depth(tokens: int) -> int:
    """How many blocks of a sequence with `tokens` tokens may come from the cache. The last token
    must always be computed, since its logits give the next token.
    """
    return (tokens - 1) // BLOCK_TOKENS


def root_key(*parts: str) -> bytes:
    """A root key. `parts` name all that the content of a block depends on, except tokens."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()


def chain(
    root: bytes,
    token_ids: Sequence[int],
    known: Sequence[bytes] = (),
    marks: Sequence[ContentMark] = (),
) -> list[bytes]:
    """The key of each whole block of a sequence. `known` are the first keys, if they were made
    before.

    A key is made from the key before it, and the tokens and marks of its block. So it stands for
    all tokens and marks up to the end of the block.
    """
    keys = list(known)
    marked: dict[int, bytes] = {}
    for mark in marks:
        block = mark.place // BLOCK_TOKENS
        marked[block] = marked.get(block, b"") + mark.digest
    for begin in range(len(keys) * BLOCK_TOKENS, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        parent = keys[-1] if keys else root
        content = pack(list(token_ids[begin : begin + BLOCK_TOKENS])) + marked.get(len(keys), b"")
        keys.append(hashlib.blake2b(parent + content, digest_size=KEY_BYTES).digest())
    return keys


@lru_cache(maxsize=1 << 14)
def snapshot_key(key: bytes) -> bytes:
    """The key of the snapshot at the end of the block that has `key`."""
    return hashlib.blake2b(key + b"snapshot", digest_size=KEY_BYTES).digest()
