"""A block's name stands for everything before its end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.prompt_cache.path import BLOCK_TOKENS, ContentMark, Paths, chain, root_key, snapshot_key

ROOT = root_key("model")
_tokens = st.lists(st.integers(0, 1), max_size=3 * BLOCK_TOKENS)


@given(_tokens, _tokens)
def test_blocks_are_shared_as_far_as_the_tokens(one: list[int], other: list[int]) -> None:
    alike = 0
    while alike < min(len(one), len(other)) and one[alike] == other[alike]:
        alike += 1
    pairs = zip(chain(ROOT, one), chain(ROOT, other), strict=False)
    assert [a == b for a, b in pairs].count(True) == alike // BLOCK_TOKENS


@given(_tokens, st.integers(0, 3))
def test_a_chain_goes_on_where_it_was(tokens: list[int], known: int) -> None:
    keys = chain(ROOT, tokens)
    assert len(keys) == len(tokens) // BLOCK_TOKENS
    assert chain(ROOT, tokens, keys[:known]) == keys


def test_another_root_shares_nothing() -> None:
    tokens = [1] * BLOCK_TOKENS
    roots = [ROOT, root_key("other"), root_key("mod", "el"), root_key("model", "")]
    assert len({chain(root, tokens)[0] for root in roots}) == len(roots)


def test_a_snapshot_is_no_block() -> None:
    (key,) = chain(ROOT, [1] * BLOCK_TOKENS)
    assert snapshot_key(key) not in (key, *chain(ROOT, [1] * 2 * BLOCK_TOKENS))


def test_a_mark_tells_what_tokens_do_not() -> None:
    """From its block on. Marks of one block count in their order."""
    token_ids = list(range(4 * BLOCK_TOKENS))
    at = 2 * BLOCK_TOKENS + 3
    plain = chain(ROOT, token_ids)
    red, green = (
        chain(ROOT, token_ids, marks=[ContentMark(at, data)]) for data in (b"red", b"green")
    )
    both = chain(ROOT, token_ids, marks=[ContentMark(at, b"red"), ContentMark(at + 5, b"green")])
    assert plain[:2] == red[:2] == green[:2] == both[:2]
    for depth in (2, 3):
        assert len({values[depth] for values in (plain, red, green, both)}) == 4


def test_a_path_keeps_its_marks() -> None:
    token_ids = list(range(3 * BLOCK_TOKENS))
    paths = Paths(b"model", None, needs_snapshots=False)
    marks = (ContentMark(BLOCK_TOKENS, b"red"),)
    whole = paths.find(token_ids, "", marks=marks)
    assert paths.find(token_ids[:BLOCK_TOKENS], "", marks=marks).to(token_ids) == whole
    assert whole.keys != paths.find(token_ids, "").keys
