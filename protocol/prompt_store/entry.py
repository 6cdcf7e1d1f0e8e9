"""What is known of a block without reading it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

KEY_BYTES: Final = 16


class Entry(Struct, frozen=True):
    """A block follows its parent's tokens with `token_ids`, packed as `protocol.message` does.

    Both keys have `KEY_BYTES` bytes and are digests of all that the payload depends on: model,
    format, and every token up to the end of the block. A parent need not be stored: the first
    block's is the root, which stands for the model alone. What `kind` and payload mean is for the
    worker to say.
    """

    key: bytes
    parent: bytes
    token_ids: bytes
    payload_bytes: int
    kind: str
