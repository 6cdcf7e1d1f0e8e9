"""Caches of rows give attention what a cache for each row alone gives, with any lengths."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import CacheList, KVCache, RotatingKVCache

from worker.mlx_lm import row_caches
from worker.mlx_lm.caches import gather, tokens_of
from worker.mlx_lm.row_caches import RowLengths, RowsCache, rows_caches
from worker.mlx_lm.row_groups import (
    ONE_GROUP,
    Grouping,
    GroupSize,
    RowGroup,
    caches_of_step,
    places_for,
)

HEADS, GROUPS, WIDTH = 4, 2, 8
WINDOW = 16
LAYERS = 2
# Few, so that caches grow often, and those of windows forget often.
CACHE_STEP_TOKENS = 8
# Sums of a softmax differ by rounding with the number of slots.
NEARLY = 1e-5


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_caches, "CACHE_STEP_TOKENS", CACHE_STEP_TOKENS)
    monkeypatch.setattr(RowsCache, "step", CACHE_STEP_TOKENS)


@dataclass
class Step:
    """The numbers of one token in each layer, shapes (1, heads, 1, width)."""

    queries: list[mx.array]
    keys: list[mx.array]
    values: list[mx.array]


class Tokens:
    """Random numbers for each token, so that no two tokens are mistaken for each other."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def make(self, count: int) -> list[Step]:
        def layers(heads: int) -> list[mx.array]:
            shape = (LAYERS, 1, heads, 1, WIDTH)
            return list(mx.array(self._random.normal(size=shape).astype(np.float32)))

        return [Step(layers(HEADS), layers(GROUPS), layers(GROUPS)) for _ in range(count)]


def _single(window: int | None) -> Any:
    return KVCache() if window is None else RotatingKVCache(window)


def _attend(queries: mx.array, cache: Any, keys: mx.array, values: mx.array, mask: Any) -> mx.array:
    seen = cache.update_and_fetch(keys, values)
    return mx.fast.scaled_dot_product_attention(queries, *seen, scale=0.3, mask=mask)


def _alone(window: int | None, tokens: list[Step]) -> list[list[mx.array]]:
    """What each token of a row sees in each layer, (1, heads, 1, width), one step a token."""
    caches = [_single(window) for _ in range(LAYERS)]
    return [
        [
            _attend(token.queries[index], cache, token.keys[index], token.values[index], None)
            for index, cache in enumerate(caches)
        ]
        for token in tokens
    ]


def _prefilled(window: int | None, prompts: list[list[Step]]) -> list[Any]:
    """mlx-lm's batch caches after these prompts, merged from caches of single rows."""
    rows = []
    for prompt in prompts:
        caches = [_single(window) for _ in range(LAYERS)]
        for index, cache in enumerate(caches):
            cache.update_and_fetch(
                mx.concatenate([step.keys[index] for step in prompt], axis=2),
                mx.concatenate([step.values[index] for step in prompt], axis=2),
            )
        rows.append(caches)
    return [type(pair[0]).merge(list(pair)) for pair in zip(*rows, strict=True)]


class Batch:
    """Rows in groups of caches of rows, each with the tokens that it has seen."""

    def __init__(
        self, window: int | None, prompts: list[list[Step]], grouping: Grouping = ONE_GROUP
    ) -> None:
        self.window = window
        self.grouping = grouping
        self.rows: list[list[Step]] = []
        self.groups: list[RowGroup] = []
        self.add_rows(prompts)

    @property
    def caches(self) -> list[Any]:
        (group,) = self.groups
        return group.caches

    @property
    def lengths(self) -> RowLengths:
        lengths: RowLengths = self.caches[0].lengths
        return lengths

    def step(self, new: list[list[Step]], right: list[int], *, as_array: bool = False) -> None:
        """A step in which each row has its `new` tokens, of which `right` stay. All that a token
        sees is compared.
        """
        width = max(map(len, new))
        padded = [values + [values[-1]] * (width - len(values)) for values in new]
        for row_group in self.groups:
            row_group.move_rows()
        caches = caches_of_step(self.groups, width)
        queries = mx.zeros((len(new), width, WIDTH))
        mask = create_attention_mask(queries, caches[0], self.window, as_array)
        for index, cache in enumerate(caches):
            parts = [
                mx.concatenate(
                    [
                        mx.concatenate([getattr(step, name)[index] for step in row], axis=2)
                        for row in padded
                    ]
                )
                for name in ("queries", "keys", "values")
            ]
            seen = _attend(parts[0], cache, *parts[1:], mask)
            for row, (before, row_tokens) in enumerate(zip(self.rows, new, strict=True)):
                expected = _alone(self.window, before + row_tokens)[-len(row_tokens) :]
                for place, row_group in enumerate(expected):
                    found = seen[row : row + 1, :, place : place + 1]
                    assert mx.allclose(found, row_group[index], atol=NEARLY), (row, place)
        for row, row_tokens, count in zip(self.rows, new, right, strict=True):
            row += row_tokens[:count]
        left = iter(right)
        for group in self.groups:
            group.advance([next(left) for _ in range(len(group))])

    def filter(self, keep: list[int]) -> None:
        order: list[int] = []
        groups, begin = [], 0
        for group in self.groups:
            end = begin + len(group)
            own = [number - begin for number in keep if begin <= number < end]
            if own:
                order += [begin + number for number in group.retain(own)]
                groups.append(group)
            begin = end
        self.groups = groups
        self.rows = [self.rows[index] for index in order]

    def add_rows(self, prompts: list[list[Step]]) -> None:
        new = RowGroup(rows_caches(_prefilled(self.window, prompts)), len(prompts))
        for group in self.groups:
            group.move_rows()
        for row, prompt in enumerate(prompts):
            at = self.grouping.place([row_group.size for row_group in self.groups], len(prompt))
            if at == len(self.groups):
                self.groups.append(new.part([row], iter(())))
            else:
                self.groups[at].add_rows(new, [row])
            behind = sum(len(group) for group in self.groups[: at + 1]) - 1
            self.rows.insert(behind, list(prompt))


@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("most_groups", [1, 3])
@pytest.mark.parametrize(
    "seed", [0, 1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_tokens_see_what_they_see_alone(window: int | None, most_groups: int, seed: int) -> None:
    """Rows of any lengths come and leave, with wrong guesses that are forgotten."""
    chance = random.Random(seed)
    tokens = Tokens(seed)

    def prompts(count: int) -> list[list[Step]]:
        return [tokens.make(chance.choice((1, 3, 15, 16, 17, 40))) for _ in range(count)]

    batch = Batch(window, prompts(chance.randrange(1, 4)), Grouping(most_groups, 5))
    seen = set()
    for _ in range(25):
        what = chance.random()
        if what < 0.2 and len(batch.rows) < 6:
            batch.add_rows(prompts(chance.choice((1, 2))))
        elif what < 0.4 and len(batch.rows) > 1:
            left = chance.choice((len(batch.rows) - 1, 1 + len(batch.rows) // 2))
            batch.filter(sorted(chance.sample(range(len(batch.rows)), left)))
        new = [tokens.make(chance.choice((1, 1, 2, 5, 16))) for _ in batch.rows]
        right = [chance.randrange(1, len(values) + 1) for values in new]
        batch.step(new, right)
        seen.add(len(batch.groups))
    assert (max(seen) > 1) == (most_groups > 1)


@pytest.mark.parametrize("window", [None, WINDOW])
def test_rows_of_one_length_need_no_mask(window: int | None) -> None:
    tokens = Tokens(1)
    batch = Batch(window, [tokens.make(4), tokens.make(4)])
    for _ in range(40):
        assert batch.lengths.mask(1) is None
        batch.step([tokens.make(1) for _ in batch.rows], [1, 1])
    assert Batch(window, [tokens.make(3), tokens.make(3)]).lengths.mask(4) == "causal"


@pytest.mark.parametrize("length", [3, CACHE_STEP_TOKENS, 21])
def test_slots_are_whole_steps_in_each_step(length: int) -> None:
    tokens = Tokens(5)
    batch = Batch(None, [tokens.make(length)])
    for _ in range(2 * CACHE_STEP_TOKENS):
        batch.step([tokens.make(1)], [1])
        assert batch.caches[0].keys.shape[2] % CACHE_STEP_TOKENS == 0


def test_a_mask_may_be_wanted_as_an_array() -> None:
    tokens = Tokens(2)
    batch = Batch(None, [tokens.make(5), tokens.make(5)])
    for width in (1, 4):
        batch.step([tokens.make(width) for _ in batch.rows], [width] * 2, as_array=True)


@pytest.mark.parametrize("lengths", [(9,), (9, 9), (9, 3)])
@pytest.mark.parametrize("width", [1, 8])
def test_a_long_answer_takes_few_more_slots_than_its_window(
    lengths: tuple[int, ...], width: int
) -> None:
    tokens = Tokens(3)
    batch = Batch(WINDOW, [tokens.make(length) for length in lengths])
    for _ in range(12 if width > 1 else 60):
        batch.step([tokens.make(width) for _ in lengths], [width] * len(lengths))
        assert batch.caches[0].keys.shape[2] <= WINDOW + width + CACHE_STEP_TOKENS
    assert min(batch.lengths.dropped) > 0


@pytest.mark.parametrize("window", [None, WINDOW])
def test_a_row_that_is_taken_out_goes_on_alone(window: int | None) -> None:
    tokens = Tokens(4)
    batch = Batch(window, [tokens.make(number) for number in (20, 7, 1)])
    batch.step([tokens.make(5), tokens.make(1), tokens.make(3)], [2, 1, 3])
    for row, before in enumerate(batch.rows):
        caches = [cache.extract(row) for cache in batch.caches]
        assert [cache.offset for cache in caches] == [len(before)] * LAYERS
        following = tokens.make(30)
        expected = _alone(window, before + following)[-len(following) :]
        for step, others in zip(following, expected, strict=True):
            for index, cache in enumerate(caches):
                seen = _attend(
                    step.queries[index], cache, step.keys[index], step.values[index], None
                )
                assert mx.allclose(seen, others[index], atol=NEARLY)


def test_lent_rows_stay_as_they_are() -> None:
    tokens = Tokens(5)
    batch = Batch(None, [tokens.make(6), tokens.make(3)])
    lent = [cache.lent() for cache in batch.caches]
    before = [[np.array(array) for array in tokens_of(item, 1, 0, 3)] for item in lent]
    batch.step([tokens.make(4), tokens.make(2)], [1, 2])
    batch.filter([0])
    for item, arrays in zip(lent, before, strict=True):
        assert item.lengths.tokens == [6, 3]
        for array, other in zip(tokens_of(item, 1, 0, 3), arrays, strict=True):
            assert (np.array(array) == other).all()


def test_pieces_of_rows_are_their_tokens() -> None:
    tokens = Tokens(6)
    batch = Batch(None, [tokens.make(9), tokens.make(4)])
    keys, values = gather(batch.caches[1], mx.array([[0], [1]]), mx.array([[2, 3], [0, 1]]))
    for piece, (row, begin) in enumerate(((0, 2), (1, 0))):
        for index in range(2):
            step = batch.rows[row][begin + index]
            assert (keys[piece, index] == step.keys[1][0, :, 0]).all()
            assert (values[piece, index] == step.values[1][0, :, 0]).all()


def test_layers_with_one_window_share_their_lengths() -> None:
    tokens = Tokens(7)
    prompts = [tokens.make(5), tokens.make(20)]
    full, sliding = _prefilled(None, prompts), _prefilled(WINDOW, prompts)
    empty = KVCache.merge([KVCache(), KVCache()])
    made = rows_caches([full[0], sliding[0], CacheList(full[1], sliding[1]), empty])
    (inner, other), last = made[2].caches, made[3]
    assert made[0].lengths is inner.lengths
    assert made[1].lengths is other.lengths
    assert made[0].lengths is not made[1].lengths
    assert made[0].lengths.tokens == made[1].lengths.tokens == [5, 20]
    assert isinstance(inner, RowsCache)
    assert last is empty


def test_a_row_joins_the_group_in_which_it_adds_the_least_padding() -> None:
    groups = [GroupSize(3, 3, 100), GroupSize(1, 1, 1000)]
    grouping = Grouping(most_groups=3, padding_tokens=200)
    assert grouping.place([], 5) == 0
    assert grouping.place(groups, 90) == 0
    assert grouping.place(groups, 150) == 0, "three rows are padded by 50 tokens"
    assert grouping.place(groups, 170) == 2, "by 70, which is more than a group costs"
    assert grouping.place(groups, 1200) == 1
    assert grouping.place(groups, 1201) == 2
    full = grouping.placed(groups, 9000)
    assert full == [*groups, GroupSize(1, 1, 9000)]
    assert grouping.place(full, 2000) == 1, "there are no more groups"


def test_a_group_has_few_spare_places() -> None:
    for rows in range(1, 300):
        assert rows <= places_for(rows) <= rows + rows / 8
    assert places_for(129) == 144


ROWS, ROW_TOKENS = 33, 250


def _dense(rows: int, lengths: list[int] | None = None) -> RowGroup:
    """Rows of one layer, whose numbers are those of the rows."""
    group = RowGroup([_layer(rows, lengths)], rows)
    mx.eval(group.leaves[0].state)
    return group


def _layer(rows: int, lengths: list[int] | None = None) -> RowsCache:
    numbers = mx.broadcast_to(mx.arange(rows)[:, None, None, None], (rows, 4, 256, 128))
    arrays = [mx.array(numbers.astype(mx.float32)) for _ in range(2)]
    return RowsCache(RowLengths(lengths or [ROW_TOKENS] * rows), *arrays)


def _decode(group: RowGroup) -> None:
    """A step, as the batch computes it."""
    rows = len(group)
    (cache,) = caches_of_step([group], 1)
    new = mx.zeros((rows, 4, 1, 128))
    mx.async_eval(_attend(new, cache, new, new, cache.make_mask(1)))  # type: ignore[no-untyped-call]
    group.advance([1] * rows)


@pytest.mark.parametrize("unlike", [False, True])
def test_joining_and_leaving_cost_a_row_and_not_the_batch(*, unlike: bool) -> None:
    """A batch of 32 rows, measured by the peak of MLX's memory."""
    lengths = [ROW_TOKENS - (index % 2 if unlike else 0) for index in range(ROWS)]
    group, others = _dense(ROWS, lengths), [_dense(1) for _ in range(4)]
    row_bytes = group.leaves[0].nbytes // ROWS
    group.add_rows(others.pop(), [0])
    assert group.leaves[0].places == 36, "this one has made room for the others"
    for _ in range(2):
        _decode(group)
        mx.synchronize()
        mx.reset_peak_memory()
        before_bytes = mx.get_active_memory()
        group.add_rows(others.pop(), [0])
        _decode(group)
        mx.synchronize()
        assert mx.get_peak_memory() - before_bytes < 2 * row_bytes
    keep = [index for index in range(len(group)) if index != 4]
    mx.reset_peak_memory()
    before_bytes = mx.get_active_memory()
    assert group.retain(keep)[:6] == [0, 1, 2, 3, 35, 5]
    group.move_rows()
    _decode(group)
    mx.synchronize()
    assert mx.get_peak_memory() - before_bytes < 2 * row_bytes
    keys = group.leaves[0].keys
    assert keys[:6, 0, 0, 0].tolist() == [0, 1, 2, 3, 0, 5]
    assert keys[31:35, 0, 0, 0].tolist() == [31, 32, 0, 0]


def test_memory_comes_back_when_many_leave() -> None:
    group = _dense(ROWS, [ROW_TOKENS, *[20] * (ROWS - 1)])
    before_bytes = group.leaves[0].nbytes
    group.retain(range(1, 9))
    assert group.leaves[0].nbytes == before_bytes, "others may read the arrays until the next step"
    assert group.size == GroupSize(8, 8, 20)
    group.move_rows()
    assert group.leaves[0].keys.shape == (8, 4, 24, 128)
    assert group.leaves[0].keys[:, 0, 0, 0].tolist() == list(range(8, 9)) + list(range(1, 8))
