"""What is in memory: a tree of blocks, of which the least recently used go first.

Nothing of MLX here: contents are opaque, sizes are bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Content = TypeVar("Content")

# What an entry takes beside its content, so that empty ones are bounded too.
_OVERHEAD_BYTES: Final = 512


@dataclass(frozen=True)
class _Entry(Generic[Content]):
    content: Content
    bytes_: int


class LruBlocks(Generic[Content]):
    """Contents by key. Those on one path are used together, the root's side last: so what is the
    least recently used is never in the middle of a path.
    """

    def __init__(self) -> None:
        self.bytes_ = 0
        # Least recently used first.
        self._entries: OrderedDict[bytes, _Entry[Content]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def depth(self, path: Sequence[bytes]) -> int:
        """How many entries of a path are here, from its beginning."""
        for depth, key in enumerate(path):
            if key not in self._entries:
                return depth
        return len(path)

    def get(self, key: bytes) -> Content:
        """Raises: KeyError."""
        return self._entries[key].content

    def bytes_of(self, keys: Iterable[bytes]) -> int:
        """What those of these entries take that are here."""
        return sum(self._entries[key].bytes_ for key in keys if key in self._entries)

    def use(self, path: Iterable[bytes]) -> None:
        """Note a use of a path, given from its beginning; entries that are gone are passed over."""
        for key in reversed(list(path)):
            if key in self._entries:
                self._entries.move_to_end(key)

    def put(self, key: bytes, content: Content, bytes_: int) -> None:
        """Add an entry; `use` its path afterwards. One that is there stays."""
        if key not in self._entries:
            entry = _Entry(content, bytes_ + _OVERHEAD_BYTES)
            self._entries[key] = entry
            self.bytes_ += entry.bytes_

    def shrink(self, most_bytes: int, kept: Container[bytes] = frozenset()) -> int:
        """Let the least recently used go until so much is left; returns how much went."""
        before_bytes = self.bytes_
        going = []
        left_bytes = self.bytes_
        for key, entry in self._entries.items():
            if left_bytes <= most_bytes:
                break
            if key not in kept:
                going.append(key)
                left_bytes -= entry.bytes_
        for key in going:
            self.bytes_ -= self._entries.pop(key).bytes_
        return before_bytes - self.bytes_
