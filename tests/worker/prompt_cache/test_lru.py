"""What is in memory stays usable: nothing goes before what hangs on it."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from worker.prompt_cache.blocks import LruBlocks

_OVERHEAD = 512


def _path(*names: int) -> list[bytes]:
    """Keys of a path, each of which stands for all before it."""
    return [bytes(names[: depth + 1]) for depth in range(len(names))]


_KEYS = [bytes(names) for n in range(1, 5) for names in itertools.product(range(3), repeat=n)]
_paths = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(lambda names: _path(*names))
_acts = st.tuples(_paths, st.integers(0, 3000), st.sampled_from(["put", "use", "shrink"]))


@given(st.lists(_acts, max_size=40))
def test_whatever_is_here_is_reached_from_its_root(
    acts: list[tuple[list[bytes], int, str]],
) -> None:
    blocks: LruBlocks[bytes] = LruBlocks()
    for path, number, act in acts:
        if act == "put":
            for key in path:
                blocks.put(key, key, number)
            blocks.use(path)
        elif act == "use":
            blocks.use(path)
        else:
            before = blocks.bytes_
            gone = blocks.shrink(number)
            assert gone == before - blocks.bytes_
            assert blocks.bytes_ <= number
        for key in filter(blocks.__contains__, _KEYS):
            assert all(key[:depth] in blocks for depth in range(1, len(key)))
            assert blocks.get(key) == key
    assert blocks.bytes_ >= len(blocks) * _OVERHEAD


def test_the_least_recently_used_go_first() -> None:
    blocks: LruBlocks[str] = LruBlocks()
    for name in (1, 2, 3):
        blocks.put(bytes([name]), "", 100)
    blocks.use([b"\x01"])
    assert blocks.shrink(2 * (100 + _OVERHEAD)) == 100 + _OVERHEAD
    assert [b"\x01" in blocks, b"\x02" in blocks, b"\x03" in blocks] == [True, False, True]


def test_spared_blocks_are_not_dropped() -> None:
    blocks: LruBlocks[str] = LruBlocks()
    blocks.put(b"a", "", 100)
    blocks.put(b"b", "", 100)
    blocks.shrink(0, spared={b"a"})
    assert b"a" in blocks
    assert b"b" not in blocks


def test_depth_is_how_far_a_path_goes() -> None:
    blocks: LruBlocks[str] = LruBlocks()
    path = _path(0, 1, 2)
    blocks.put(path[0], "", 0)
    blocks.put(path[2], "", 0)
    assert blocks.depth(path) == 1
    blocks.put(path[1], "", 0)
    assert blocks.depth(path) == 3
