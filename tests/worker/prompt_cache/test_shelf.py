"""What is in memory stays usable: nothing goes before what hangs on it."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from worker.prompt_cache.shelf import Shelf

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
    shelf: Shelf[bytes] = Shelf()
    for path, number, act in acts:
        if act == "put":
            for key in path:
                shelf.put(key, key, number)
            shelf.use(path)
        elif act == "use":
            shelf.use(path)
        else:
            before = shelf.bytes_
            gone = shelf.shrink(number)
            assert gone == before - shelf.bytes_
            assert shelf.bytes_ <= number
        for key in filter(shelf.__contains__, _KEYS):
            assert all(key[:depth] in shelf for depth in range(1, len(key)))
            assert shelf.get(key) == key
    assert shelf.bytes_ >= len(shelf) * _OVERHEAD


def test_the_least_recently_used_go_first() -> None:
    shelf: Shelf[str] = Shelf()
    for name in (1, 2, 3):
        shelf.put(bytes([name]), "", 100)
    shelf.use([b"\x01"])
    assert shelf.shrink(2 * (100 + _OVERHEAD)) == 100 + _OVERHEAD
    assert [b"\x01" in shelf, b"\x02" in shelf, b"\x03" in shelf] == [True, False, True]


def test_what_is_kept_is_passed_over() -> None:
    shelf: Shelf[str] = Shelf()
    shelf.put(b"a", "", 100)
    shelf.put(b"b", "", 100)
    shelf.shrink(0, kept={b"a"})
    assert b"a" in shelf
    assert b"b" not in shelf


def test_depth_is_how_far_a_path_goes() -> None:
    shelf: Shelf[str] = Shelf()
    path = _path(0, 1, 2)
    shelf.put(path[0], "", 0)
    shelf.put(path[2], "", 0)
    assert shelf.depth(path) == 1
    shelf.put(path[1], "", 0)
    assert shelf.depth(path) == 3
