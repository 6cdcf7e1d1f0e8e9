"""What a quarantine of cached blocks takes along, and where these blocks came from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from worker.prompt_cache.blocks import Block
from worker.prompt_cache.path import Path, snapshot_key


def parents_of(path: Path) -> dict[bytes, bytes]:
    """The parents of a path's blocks and snapshots, by key."""
    parents = dict(zip(path.keys, (path.root, *path.keys), strict=False))
    return parents | {snapshot_key(key): key for key in path.keys}


def following(parents: Mapping[bytes, bytes], keys: Iterable[bytes]) -> set[bytes]:
    """Those of `parents` that are in `keys`, or follow one of these."""
    children: dict[bytes, list[bytes]] = {}
    for key, parent in parents.items():
        children.setdefault(parent, []).append(key)
    found: set[bytes] = set()
    going = list(keys)
    while going:
        key = going.pop()
        if key not in found:
            found.add(key)
            going += children.get(key, [])
    return found & parents.keys()


def source_of(blocks: Collection[Block], joined: int) -> str:
    """Where these blocks of a path of `joined` blocks came from, in words."""
    read = [block.writer for block in blocks if block.writer]
    parts = [f"a prompt joined of {joined} blocks"]
    if len(read) < len(blocks):
        parts.append(f"{len(blocks) - len(read)} computed by this worker")
    if read:
        parts.append(f"{len(read)} read from disk, written by {', '.join(sorted(set(read)))}")
    return ": ".join([parts[0], ", ".join(parts[1:])]) if parts[1:] else parts[0]
