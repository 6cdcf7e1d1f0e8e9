"""The counted places of waiting sequences, beside batches of a real model."""

from __future__ import annotations

import pytest

from tests.support import shapes
from worker.engines.batched_engine import BatchedEngine
from worker.engines.placement import Placement
from worker.engines.room import BatchSize, CacheRoom, grouping, measure
from worker.engines.row_batch import RowBatch
from worker.engines.sequence import Sequence
from worker.load.loading import LoadedModel, load
from worker.mlx_lm.row_groups import ONE_GROUP

ENOUGH = 1 << 40


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load(str(shapes.DEMO), lambda _done, _total: None, lambda: False)


@pytest.fixture
def room(model: LoadedModel) -> CacheRoom:
    return CacheRoom(measure(model.model))


@pytest.fixture
def batch(model: LoadedModel, room: CacheRoom) -> RowBatch:
    """Two rows that decode, and one in prefill."""
    engine = BatchedEngine(model.model, (), 8, room)
    for length in (20, 90):
        engine.add(Sequence(str(length), [1] * length, 50, None, ignore_eos=True))
    for _ in range(4):
        engine.step()
    engine.add(Sequence("200", [1] * 200, 50, None, ignore_eos=True))
    engine.step()
    (batch,) = engine._batches
    return batch


def test_sequences_are_counted_as_the_rows_that_they_become(
    batch: RowBatch, room: CacheRoom
) -> None:
    placement = Placement(room, grouping(room.shape), [batch], ENOUGH)
    assert placement.sizes == batch.sizes()
    lengths = [30, 500, 31, 7]
    for count, length in enumerate(lengths):
        assert placement.best(length) is batch
        assert placement.joined(batch, length) == batch.sizes(lengths[: count + 1])
        placement.join(batch, length)
    assert placement.sizes == batch.sizes(lengths)


def test_room_is_left_for_sequences_that_join_later(batch: RowBatch, room: CacheRoom) -> None:
    room.limit_bytes = room.needed_bytes(batch.sizes([30, 30]))
    placement = Placement(room, grouping(room.shape), [batch], ENOUGH)
    placement.leave_room(batch, 30)
    assert placement.sizes == batch.sizes(), "nobody has joined yet"
    placement.join(batch, 30)
    assert placement.best(30) is None
    assert not placement.has_room(30)
    assert not placement.may_open(30)


def test_a_sequence_begins_another_batch_rather_than_pad_this_one(
    batch: RowBatch, room: CacheRoom
) -> None:
    longest = max(size.longest_tokens for size in batch.sizes())
    no_padding = Placement(room, ONE_GROUP, [batch], 0)
    assert no_padding.best(longest) is batch
    assert no_padding.best(longest + 1000) is None
    assert no_padding.may_open(longest + 1000)
    room.limit_bytes = room.needed_bytes([*batch.sizes(), BatchSize(1, longest + 1000)])
    assert no_padding.may_open(longest + 1000)
    room.limit_bytes -= 1
    assert not no_padding.may_open(longest + 1000)
