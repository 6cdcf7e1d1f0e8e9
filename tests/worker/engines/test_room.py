"""What batches need of a limit, without a model."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
)

from protocol.life import DRAFT_TOKENS, LARGEST_CHUNK_TOKENS, LARGEST_CHUNK_TOKENS_ON_CPU
from worker.engines import room as rooms
from worker.engines.room import BatchSize, CacheRoom, CacheSizes
from worker.mlx_lm.added_caches import QuantizedCache

# 10 bytes a token in steps of 256, 7 a row, and at most three times that while it changes.
SHAPE = CacheSizes(10, 7, 3.0)
ONE = 2560 + 7


@pytest.mark.parametrize(
    ("rows", "tokens", "size"),
    [(0, 9, 0), (1, 0, 7), (1, 1, ONE), (1, 256, ONE), (1, 257, 5127), (3, 256, 3 * ONE)],
)
def test_caches_grow_by_steps(rows: int, tokens: int, size: int) -> None:
    assert SHAPE.batch_bytes(rows, tokens) == size


def test_a_draft_model_keeps_few_tokens() -> None:
    drafted = SHAPE._replace(draft_token_bytes=100)
    for rows, tokens, known in ((1, 300, 512), (3, DRAFT_TOKENS, DRAFT_TOKENS), (2, 9000, 2048)):
        own_bytes = SHAPE.batch_bytes(rows, tokens)
        assert drafted.batch_bytes(rows, tokens) == own_bytes + rows * known * 100


def test_the_need_of_several_batches() -> None:
    room = CacheRoom(SHAPE, fixed_bytes=1_000_000, working_bytes=100_000, working_token_bytes=100)
    assert room.needed_bytes([]) == room.needed_bytes([BatchSize(0, 5000)]) == 1_100_000
    assert room.needed_bytes([BatchSize(1, 1)]) == 1_125_600 + 3 * ONE
    # The longest sets the step's working space, and the largest is the only one that grows.
    assert (
        room.needed_bytes([BatchSize(2, 100), BatchSize(1, 300)]) == 1_151_200 + 5127 + 3 * 2 * ONE
    )
    assert (
        room.needed_bytes([BatchSize(1, 300), BatchSize(4, 100)]) == 1_151_200 + 5127 + 3 * 4 * ONE
    )
    assert CacheRoom(SHAPE).needed_bytes([BatchSize(1, 1)]) == 3 * ONE


def test_the_limit_itself_is_enough_and_none_is_no_bound() -> None:
    room = CacheRoom(SHAPE, limit_bytes=3 * ONE)
    assert room.holds([BatchSize(1, 256)])
    assert not room.holds([BatchSize(1, 257)])
    room.limit_bytes -= 1
    assert not room.holds([BatchSize(1, 256)])
    room.limit_bytes = None
    assert room.holds([BatchSize(1000, 1_000_000)])


def test_free_bytes_for_caches() -> None:
    room = CacheRoom(SHAPE, limit_bytes=1_000, fixed_bytes=300, working_bytes=50)
    assert room.free_bytes == 650
    room.limit_bytes = 350
    assert room.free_bytes == 0
    room.limit_bytes = 349
    assert room.free_bytes == 0
    room.limit_bytes = None
    assert room.free_bytes == 0
    assert CacheRoom(SHAPE).free_bytes == 0


def test_leaks_make_no_request_impossible() -> None:
    room = CacheRoom(SHAPE, limit_bytes=1, most_bytes=3 * ONE + 50, fixed_bytes=50)
    assert room.could_hold(256)
    assert not room.could_hold(257)
    room.fixed_bytes = 60
    assert not room.could_hold(256)
    room.grown_bytes = 10
    assert room.could_hold(256)


def test_vectors_that_are_computed_pass() -> None:
    """They take of the limit, and make nothing impossible."""
    room = CacheRoom(SHAPE, limit_bytes=3 * ONE, most_bytes=3 * ONE, vector_bytes=5)
    assert room.needed_bytes([BatchSize(1, 256)]) == 3 * ONE + 5
    assert not room.holds([BatchSize(1, 256)])
    assert room.could_hold(256)


def test_without_a_bound_everything_can_run() -> None:
    for limit_bytes, most_bytes in ((None, 1), (1, None), (None, None)):
        room = CacheRoom(SHAPE, limit_bytes=limit_bytes, most_bytes=most_bytes)
        assert room.could_hold(1_000_000)
        assert room.longest_tokens(1_000_000) == 1_000_000


@pytest.mark.parametrize(
    ("limit_tokens", "tokens", "longest_tokens"),
    [(512, 300, 300), (512, 512, 512), (512, 513, 512), (512, 9000, 512), (256, 257, 256)],
)
def test_the_longest_that_can_run(limit_tokens: int, tokens: int, longest_tokens: int) -> None:
    room = CacheRoom(SHAPE, limit_bytes=3 * SHAPE.batch_bytes(1, limit_tokens), most_bytes=0)
    assert room.longest_tokens(tokens) == longest_tokens


def test_no_sequence_runs_without_room_for_one_step() -> None:
    assert CacheRoom(SHAPE, limit_bytes=3 * ONE - 1, most_bytes=0).longest_tokens(9000) == 0


def test_a_batch_has_no_array_of_more_elements_than_mlx_counts() -> None:
    # 8 heads of 128 numbers, as a model of 8B has them.
    room = CacheRoom(SHAPE._replace(token_elements=1024))
    assert room.shape.most_tokens == 2_096_640
    assert room.holds([BatchSize(20, 100_000), BatchSize(20, 100_000)])
    assert not room.holds([BatchSize(21, 100_000)])
    assert room.holds([BatchSize(1, 2_096_640 + 256)]), "the step of a row with the longest context"
    windowed = CacheRoom(SHAPE._replace(row_elements=8 * 128 * 4096))
    assert windowed.shape.most_tokens is None
    assert windowed.holds([BatchSize(511, 1)])
    assert not windowed.holds([BatchSize(512, 1)])


def test_a_cpu_takes_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms.mx, "default_device", lambda: mx.cpu)
    assert rooms.largest_chunk() == LARGEST_CHUNK_TOKENS_ON_CPU
    monkeypatch.setattr(rooms.mx, "default_device", lambda: mx.gpu)
    assert rooms.largest_chunk() == LARGEST_CHUNK_TOKENS


def test_a_group_of_rows_costs_as_much_as_a_step_beside_its_caches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = []
    for device in (mx.cpu, mx.gpu):
        monkeypatch.setattr(rooms.mx, "default_device", lambda device=device: device)
        costs.append(rooms.step_bytes())
        assert rooms.grouping(SHAPE).padding_tokens == rooms.step_bytes() // 10
        assert rooms.grouping(rooms.NO_CACHES).padding_tokens == rooms.step_bytes()
    assert costs == sorted(costs), "a step of a GPU is quick beside its start"


class TestMeasure:
    """Whether caches grow is known by their types; sizes are those that one step leaves."""

    @staticmethod
    def measured(*caches: object) -> CacheSizes:
        def model(tokens: mx.array, cache: list[object]) -> mx.array:
            entries = mx.zeros((1, 2, tokens.shape[1], 8), mx.float32)
            for item in cache:
                for one in getattr(item, "caches", [item]):
                    one.update_and_fetch(entries, entries)
            return tokens

        return rooms.measure(model, lambda: list(caches))

    def test_those_that_grow(self) -> None:
        # Keys and values of 2 heads of 8 floats.
        assert self.measured(KVCache(), KVCache())[:2] == (256, 0)
        assert self.measured(KVCache(), KVCache()).token_elements == 16
        nested = CacheList(KVCache(), KVCache())
        assert self.measured(nested, KVCache())[:2] == (384, 0)

    def test_those_that_are_quantized(self) -> None:
        def model(_tokens: mx.array, cache: list[QuantizedCache]) -> mx.array:
            entries = mx.zeros((1, 2, 2, 64), mx.float32)
            for quantized_cache in cache:
                quantized_cache.update_and_fetch(entries, entries)
            return entries

        def make_caches() -> list[QuantizedCache]:
            return [QuantizedCache(bits=4) for _ in range(2)]

        # Keys and values of 2 heads: 64 times 4 bits, and a scale and a bias, which are floats.
        assert rooms.measure(model, make_caches)[:2] == (2 * 2 * 2 * (32 + 4 + 4), 0)

    def test_it_runs_two_tokens(self) -> None:
        seen: list[list[list[int]]] = []

        def model(tokens: mx.array, cache: list[object]) -> mx.array:
            assert cache == []
            seen.append(tokens.tolist())
            return tokens

        assert rooms.measure(model, list)[:2] == (0, 0)
        assert seen == [[[0, 0]]], "which every vocabulary has"

    def test_those_with_a_bound(self) -> None:
        window = RotatingKVCache(max_size=100)
        assert self.measured(window)[:2] == (0, 12_800)
        chunked = ChunkedKVCache(chunk_size=100)
        assert self.measured(chunked)[:2] == (0, 128 * 356)
        both = self.measured(
            RotatingKVCache(max_size=100),
            ChunkedKVCache(chunk_size=100),
            RotatingKVCache(max_size=50),
            KVCache(),
        )
        assert both[:2] == (128, 12_800 + 128 * 356 + 6_400)
        assert both.peak == 3.0

    def test_those_with_a_state(self) -> None:
        class State:
            nbytes = 40

            def update_and_fetch(self, _keys: mx.array, _values: mx.array) -> None:
                pass

        assert self.measured(State(), State(), KVCache())[:2] == (128, 80)
