"""Chooses the places of snapshots along a prompt, and the snapshots to drop.

A snapshot takes as many bytes as hundreds or thousands of tokens. A request goes on from the
deepest snapshot that its prompt shares, and computes the rest. Most prompts differ from an earlier
prompt only near the end of the earlier prompt. So snapshots are dense near the end of a prompt, and
sparse far from the end. If so many tokens differ, at most about as many tokens are computed again.

A path is the row of a prompt's blocks. Depths are in blocks, from the beginning of the path.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

# Prompts part at the end of a message so many times as often as at any other place.
_AT_MESSAGE: Final = 4


def spread(depths: Iterable[int], end: int) -> list[int]:
    """Some of these depths, in ascending order: the last one before `end`, and then each one that
    is at least twice as far from `end` as the one after it.
    """
    chosen: list[int] = []
    least = 1
    for depth in sorted(depths, reverse=True):
        if depth > 0 and end - depth >= least:
            chosen.append(depth)
            least = 2 * (end - depth)
    return chosen[::-1]


def superfluous(depths: Sequence[int], spared: Container[int]) -> list[int]:
    """Snapshots that a path can lose, of its snapshots at these ascending depths. A snapshot may go
    if the two beside it are no farther from each other than the later one is from the deepest one.
    Those in `spared` stay.
    """
    going = []
    before = 0
    for depth, after in pairwise(depths):
        if depth not in spared and after - before <= depths[-1] - after:
            going.append(depth)
        else:
            before = depth
    return going


@dataclass
class _Snapshot:
    """`before` is the snapshot before on the path, and `end` the depth of the path at the last use.
    `used_at` counts requests. `resumed` counts the requests that went on from this snapshot.
    """

    depth: int
    before: bytes | None
    end: int
    used_at: int
    at_message: bool = False
    resumed: int = 0
    stored: bool = False


class Snapshots:
    """The uses of the snapshots in memory, which tell the snapshot whose loss costs least."""

    def __init__(self) -> None:
        self._snapshots: dict[bytes, _Snapshot] = {}
        self._requests = 0

    def __contains__(self, key: bytes) -> bool:
        return key in self._snapshots

    def resume(self, key: bytes | None) -> None:
        """Note that a request goes on from this snapshot; None: it begins without a snapshot."""
        self._requests += 1
        if key in self._snapshots:
            self._snapshots[key].resumed += 1

    def use(self, path: Sequence[tuple[int, bytes]], end: int, at_message: Container[int]) -> None:
        """Note a use of a path of `end` blocks. `path` has all its snapshots, by their depths in
        ascending order. Messages begin or end at the depths `at_message`.
        """
        before = None
        for depth, key in path:
            snapshot = self._snapshots.setdefault(
                key, _Snapshot(depth, before, end, self._requests)
            )
            snapshot.before, snapshot.end, snapshot.used_at = before, end, self._requests
            snapshot.at_message |= depth in at_message
            before = key

    def drop(self, key: bytes) -> None:
        gone = self._snapshots.pop(key)
        for snapshot in self._snapshots.values():
            if snapshot.before == key:
                snapshot.before = gone.before

    def mark_stored(self, key: bytes) -> None:
        """Note that the snapshot goes to disk."""
        self._snapshots[key].stored = True

    def is_stored(self, key: bytes) -> bool:
        return self._snapshots[key].stored

    def is_at_message(self, key: bytes) -> bool:
        return self._snapshots[key].at_message

    @property
    def inner(self) -> set[bytes]:
        """The snapshots that have a snapshot behind them on some path."""
        return {
            snapshot.before for snapshot in self._snapshots.values() if snapshot.before is not None
        }

    def least(self, spared: Container[bytes] = ()) -> bytes | None:
        """The inner snapshot whose loss costs least, as far as past requests tell; None: all are
        spared.

        The loss costs the blocks from the snapshot before to this one, each time that a request
        would go on from here. That is likelier the nearer the snapshot is to the end of its path,
        the oftener requests went on from it, and the fewer requests came since the last use.
        """
        keys = (key for key in self.inner if key not in spared)
        return min(keys, key=self._cost, default=None)

    def _cost(self, key: bytes) -> float:
        snapshot = self._snapshots[key]
        before = 0 if snapshot.before is None else self._snapshots[snapshot.before].depth
        odds = snapshot.resumed + (_AT_MESSAGE if snapshot.at_message else 1)
        from_end = snapshot.end - snapshot.depth + 1
        return (
            (snapshot.depth - before) * odds / (from_end * (self._requests - snapshot.used_at + 1))
        )
