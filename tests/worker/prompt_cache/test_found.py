"""The sample of found prompts is bounded, and is computed anew piece by piece."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.prompt_cache.found import FoundPrompt, FoundPrompts, next_piece
from worker.prompt_cache.path import ContentMark, Path, chain


def _found(blocks: int, seed: int = 0, picture: int | None = None) -> FoundPrompt:
    tokens = [seed] * (blocks * 64 + 1)
    marks = () if picture is None else (ContentMark(picture, b"p"),)
    return FoundPrompt(Path(b"r", tuple(chain(b"r", tokens)), marks=marks), tokens)


def test_the_last_prompts_come_first() -> None:
    prompts = FoundPrompts()
    for seed in [*range(40), 20]:
        prompts.add(_found(1, seed))
    seeds = [found.token_ids[0] for found in prompts.latest()]
    assert seeds[:3] == [20, 39, 38]
    assert len(seeds) == 32


def test_long_prompts_are_bounded_by_their_tokens() -> None:
    prompts = FoundPrompts()
    for seed in range(10):
        prompts.add(_found(1000, seed))
    assert len(prompts.latest()) == 4


@given(
    st.integers(1, 40),
    st.none() | st.sets(st.integers(1, 40)),
    st.none() | st.integers(0, 2600),
    st.integers(1, 12),
)
def test_pieces_follow_each_other(
    blocks: int, snapshots: set[int] | None, picture: int | None, most: int
) -> None:
    found = _found(blocks, picture=picture)
    ends = None if snapshots is None else sorted(depth for depth in snapshots if depth <= blocks)
    proven: set[bytes] = set()
    last = 0
    while (piece := next_piece(found, ends, proven, most)) is not None:
        assert piece.first == last
        assert piece.first < piece.last <= piece.first + most
        assert ends is None or {piece.first, piece.last} <= {0, *ends}
        last = piece.last
        proven.update(found.path.keys[piece.first : piece.last])
    limit = blocks if picture is None else min(blocks, picture // 64)
    if ends is None:
        assert last == limit
    else:
        assert last <= limit


def test_a_gap_between_snapshots_that_is_too_long_is_left_out() -> None:
    assert next_piece(_found(10), [9], set(), 8) is None
    assert next_piece(_found(10), [3, 9], set(), 8) is not None
