"""The prompts that were lately found in the cache: a sample of them is computed anew at rest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from worker.prompt_cache.path import BLOCK_TOKENS, Path

_MOST_PROMPTS: Final = 32
_MOST_TOKENS: Final = 1 << 18


class FoundPrompt(NamedTuple):
    """The blocks of `path` were found for a prompt that begins with `token_ids`, at least one token
    more than the blocks have.
    """

    path: Path
    token_ids: Sequence[int]


class Piece(NamedTuple):
    """The blocks `first` to `last` - 1 of a path."""

    first: int
    last: int


class FoundPrompts:
    """A bounded number of prompts, the last found one first."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[bytes, FoundPrompt] = OrderedDict()
        self._tokens = 0

    def add(self, found: FoundPrompt) -> None:
        key = found.path.keys[-1]
        self._forget(key)
        self._prompts[key] = found
        self._tokens += len(found.token_ids)
        while len(self._prompts) > _MOST_PROMPTS or self._tokens > _MOST_TOKENS:
            self._forget(next(iter(self._prompts)))

    def latest(self) -> list[FoundPrompt]:
        return list(reversed(self._prompts.values()))

    def clear(self) -> None:
        self._prompts.clear()
        self._tokens = 0

    def _forget(self, key: bytes) -> None:
        if (gone := self._prompts.pop(key, None)) is not None:
            self._tokens -= len(gone.token_ids)


def next_piece(
    found: FoundPrompt,
    snapshots: Sequence[int] | None,
    proven: Container[bytes],
    most_blocks: int,
) -> Piece | None:
    """The first piece of a prompt that isn't `proven`; None: there is none. A piece begins and ends
    at one of the `snapshots`, or else anywhere (None), and has at most `most_blocks` blocks.

    A piece is computed behind the cached blocks before it, so pieces are proven in order. Behind a
    picture nothing can be computed from tokens alone.
    """
    keys = found.path.keys
    pictures = (mark.place // BLOCK_TOKENS for mark in found.path.marks)
    end = min([len(keys), *pictures])
    ends: Sequence[int] = range(1, end + 1)
    if snapshots is not None:
        ends = [depth for depth in snapshots if depth <= end]
    first = 0
    for depth in ends:
        if keys[depth - 1] in proven:
            first = depth
        elif snapshots is not None or depth == end or depth - first == most_blocks:
            return Piece(first, depth) if depth - first <= most_blocks else None
    return None
