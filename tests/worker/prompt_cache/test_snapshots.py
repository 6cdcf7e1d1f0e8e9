"""Snapshots are dense near the end of a prompt, and those go first that are missed least."""

from __future__ import annotations

from math import log2

from hypothesis import given
from hypothesis import strategies as st

from worker.prompt_cache.snapshots import Snapshots, spread, superfluous

_depths = st.sets(st.integers(0, 500))


@given(_depths, st.integers(0, 500))
def test_few_messages_are_chosen_and_the_last_one_always(depths: set[int], end: int) -> None:
    chosen = spread(depths, end)
    before_end = [depth for depth in depths if 0 < depth < end]
    assert chosen == sorted(set(chosen) & set(before_end))
    assert chosen[-1:] == sorted(before_end)[-1:]
    assert len(chosen) <= log2(max(1, end)) + 1
    for number in before_end:
        # The message after a skipped message is chosen, or is not much nearer to the end.
        after = min((other for other in chosen if other >= number), default=end)
        assert end - number < max(1, 2 * (end - after)) or number in chosen


def test_depths_are_spread_by_doubled_distances() -> None:
    assert spread(range(9), 8) == [4, 6, 7]
    assert spread([1, 2], 2) == [1]
    assert spread([0, 1], 8) == [1]


def test_gaps_are_no_longer_than_the_way_to_the_end() -> None:
    assert superfluous(range(1, 9), ()) == [1, 2, 3, 5]
    assert superfluous(range(1, 9), {2}) == [1, 3, 4]
    assert superfluous([4, 5, 10], ()) == [4]
    assert superfluous([4, 6, 11], ()) == []
    assert superfluous([], ()) == []


@given(st.lists(st.integers(1, 40), min_size=1, max_size=80), st.sets(st.integers(0, 400)))
def test_a_prompt_that_parts_computes_no_more_again_than_differs(
    chunks: list[int], spared: set[int]
) -> None:
    made: list[int] = []
    left: list[int] = []
    for chunk in chunks:
        made.append((made[-1] if made else 0) + chunk)
        left.append(made[-1])
        for number in superfluous(left, spared):
            left.remove(number)
    end = made[-1]
    assert left[-1] == end
    assert spared.intersection(made) <= set(left)
    assert len(set(left) - spared) <= 2 * log2(end) + 2
    for number in made:
        found = max((other for other in left if other <= number), default=0)
        assert number - found <= end - number


# A path of blocks is a tuple of names, and stands for the key of its last block.
_paths = st.lists(st.integers(0, 1), min_size=1, max_size=8)
_acts = st.one_of(
    st.tuples(st.just("keep"), _paths, st.sets(st.integers(1, 8))),
    st.tuples(st.just("resume"), _paths, st.just(set())),
    st.tuples(st.just("drop"), _paths, st.sets(st.integers(1, 8))),
)


@given(st.lists(_acts, max_size=30))
def test_snapshots_stay_ordered_whatever_is_dropped(
    acts: list[tuple[str, list[int], set[int]]],
) -> None:
    snapshots = Snapshots()
    seen: set[bytes] = set()
    remaining: set[bytes] = set()
    for act, names, depths in acts:
        path = [bytes(names[:depth]) for depth in range(1, len(names) + 1)]
        seen.update(path)
        if act == "resume":
            snapshots.resume(path[-1])
            continue
        if act == "keep":
            remaining.add(path[-1])
        else:
            spared = {data for data in remaining if len(data) in depths}
            gone = snapshots.least(spared)
            assert (gone is None) == (snapshots.inner <= spared)
            if gone is not None:
                assert gone in snapshots.inner - spared
                snapshots.drop(gone)
                remaining.remove(gone)
        found = [(len(data), data) for data in path if data in remaining]
        snapshots.use(found, len(path), depths)
        assert {data for data in seen if data in snapshots} == remaining
    while (gone := snapshots.least()) is not None:
        snapshots.drop(gone)
    assert not snapshots.inner


def _used(*paths: str) -> Snapshots:
    """A snapshot after each capital letter of these paths, which are used one after the other."""
    snapshots = Snapshots()
    for path in paths:
        snapshots.resume(None)
        beginnings = [path[: depth + 1] for depth, text in enumerate(path) if text.isupper()]
        snapshots.use(
            [(len(beginning), beginning.encode()) for beginning in beginnings], len(path), ()
        )
    return snapshots


def _order(snapshots: Snapshots) -> list[str]:
    """The snapshots in the order in which they are dropped, each by its last letter."""
    order = []
    while (key := snapshots.least()) is not None:
        snapshots.drop(key)
        order.append(key.decode()[-1])
    return order


def test_those_near_the_end_stay_and_the_last_ones_in_any_case() -> None:
    order = _order(_used("abcDefgHijkLmnoPqrsT"))
    assert (order[0], order[-1]) == ("D", "P")


def test_those_that_are_spared_stay() -> None:
    snapshots = _used("abcDefgHijkL")
    assert snapshots.least({b"abcD"}) == b"abcDefgH"
    assert snapshots.least({b"abcD", b"abcDefgH"}) is None


def test_stored_snapshots_are_known() -> None:
    snapshots = _used("abcDefgH")
    snapshots.mark_stored(b"abcD")
    assert [snapshots.is_stored(data) for data in (b"abcD", b"abcDefgH")] == [True, False]


def test_use_and_place_are_weighed() -> None:
    # Seven blocks of the request before against three of the last request.
    assert _order(_used("abcdefGH", "ijKL")) == ["K", "G"]
    assert _order(_used("abcdefGH", "ijklMN")) == ["G", "M"]
    snapshots = _used("abCdefgHijkL")
    snapshots.resume(b"abC")
    snapshots.resume(b"abC")
    snapshots.use([(3, b"abC"), (8, b"abCdefgH"), (12, b"abCdefgHijkL")], 12, ())
    assert _order(snapshots) == ["C", "H"]


def test_those_that_save_little_go_first() -> None:
    assert _order(_used("abcdefGHijK"))[0] == "H"


def test_those_unused_for_long_go_first() -> None:
    assert _order(_used("abcDE", "efgHI", "ijkLM")) == ["D", "H", "L"]


def test_snapshots_that_several_requests_resumed_stay() -> None:
    snapshots = _used("abcDefgHijklmnoP")
    for _ in range(8):
        snapshots.resume(b"abcD")
    snapshots.use([(4, b"abcD"), (8, b"abcDefgH"), (16, b"abcDefgHijklmnoP")], 16, ())
    assert _order(snapshots)[0] == "H"


def test_snapshots_at_messages_stay() -> None:
    path = "abcDefgHijkL"
    assert _order(_used(path))[0] == "D"
    snapshots = _used(path)
    snapshots.use([(4, b"abcD"), (8, b"abcDefgH"), (12, path.encode())], 12, {4})
    assert snapshots.is_at_message(b"abcD")
    assert not snapshots.is_at_message(b"abcDefgH")
    assert _order(snapshots)[0] == "H"
