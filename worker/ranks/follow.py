"""A follower: it loads its part of the model, and carries out the orders of rank 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.life import Load
from worker.engines.decoding import Caches
from worker.engines.room import WorkerLimits, limits_of, measure
from worker.load.loading import LoadedModel, load
from worker.mlx_lm.decoding_row import RowCaches
from worker.mlx_lm.generator import Generator, NewRow, Sampler, Tap
from worker.mlx_lm.macos import wiring
from worker.prompt_cache.blocks import Block, Cutter
from worker.ranks.group import join, split_model, versions
from worker.ranks.lead import finish_step, receiving_sampler
from worker.ranks.links import (
    CloseBatch,
    CutBlocks,
    EndRank,
    FollowerLink,
    FollowerReady,
    ForgetBlocks,
    InsertRow,
    JoinBlocks,
    LoadPart,
    OpenBatch,
    PartFailed,
    PartLoaded,
    RankOrder,
    RemoveRows,
    RowPlace,
    SetLimit,
    StepBatch,
    TakeSnapshot,
    TrimMemory,
)
from worker.system.errors import LoadAbandonedError, ModelError
from worker.system.memory import freeze_imports, read_device, released_memory, trim


def follow(link: FollowerLink, rank: int, should_stop: Callable[[], bool]) -> None:
    """Follow rank 0 until rank 0 ends the work, or `should_stop` becomes true."""
    link.send(FollowerReady(versions()))
    freeze_imports()
    order = link.receive(should_stop)
    if isinstance(order, LoadPart):
        with released_memory():
            _follow(link, rank, order, should_stop)


def _follow(
    link: FollowerLink, rank: int, load_order: LoadPart, should_stop: Callable[[], bool]
) -> None:
    try:
        group, loaded = _load(rank, load_order, should_stop)
    except ModelError as error:
        link.send(PartFailed(error.reason, error.permanent))
        # Rank 0 tells the gateway, which ends all ranks. Wait for that.
        link.receive(should_stop)
        return
    except LoadAbandonedError:
        return
    link.send(PartLoaded())
    follower = _make_follower(group, loaded, load_order.load)
    del loaded
    try:
        while (order := link.receive(should_stop)) is not None and follower.obey(order):
            continue
    finally:
        follower.close()


def _load(
    rank: int, load_order: LoadPart, should_stop: Callable[[], bool]
) -> tuple[Any, LoadedModel]:
    """Make a group with the other ranks, and load this rank's part of the model. Raises:
    ModelError, LoadAbandonedError.
    """
    ranks = load_order.load.ranks
    if ranks is None:
        raise ModelError("Rank 0 has sent a load without ranks.")
    group = join(ranks, rank)

    def part(model: Any, config: dict[str, Any]) -> None:
        split_model(model, config, group, ranks.split)

    return group, load(load_order.load.path, lambda _done, _total: None, should_stop, part=part)


def _make_follower(group: Any, loaded: LoadedModel, command: Load) -> Follower:
    """Make the follower, with this rank's part of the model."""
    caches = Caches(loaded.model, command.kv_bits)
    if command.wire:
        wiring.wire(loaded.weight_bytes, read_device())
    limits = limits_of(command, measure(caches.run, caches.make), loaded.weight_bytes)
    return Follower(caches.model, Cutter(caches.run, caches.make), limits, receiving_sampler(group))


class Follower:
    """Repeats the computations of rank 0 in the same order: a collective operation ends only when
    all ranks take part. Only the thread that owns MLX calls the methods.
    """

    def __init__(self, model: Any, cutter: Cutter, limits: WorkerLimits, sampler: Sampler) -> None:
        self._model = model
        self._cutter = cutter
        self._limits = limits
        self._sampler = sampler
        self._batches: dict[int, _FollowedBatch] = {}
        self._blocks: dict[int, Block] = {}
        self._joined: dict[int, list[Any]] = {}

    def obey(self, order: RankOrder) -> bool:
        """Carry out an order. Returns False after the last order.

        Raises:
            KeyError: rank 0 names a batch or block that isn't here, so the ranks have come apart.
        """
        match order:
            case StepBatch():
                self._step(order)
            case InsertRow():
                self._insert(order)
            case RemoveRows(batch, rows):
                self._batches[batch].generator.remove(rows)
            case OpenBatch(batch):
                self._batches[batch] = _FollowedBatch(self._model, self._sampler, order)
            case CloseBatch(batch):
                self._batches.pop(batch).generator.close()
            case CutBlocks(place, first, last, number):
                blocks = self._cutter.cut(*self._row_caches(place), first, last)
                self._blocks.update(enumerate(blocks, start=number))
            case TakeSnapshot(place, number):
                self._blocks[number] = self._cutter.snapshot(*self._row_caches(place))
            case JoinBlocks(blocks, snapshot, number):
                self._joined[number] = self._cutter.join(
                    [self._blocks[block_number] for block_number in blocks],
                    None if snapshot is None else self._blocks[snapshot],
                )
            case ForgetBlocks(numbers):
                for block_number in numbers:
                    del self._blocks[block_number]
            case SetLimit(limit_bytes, beside_bytes):
                self._limits.set_limit(limit_bytes, beside_bytes)
                trim()
            case TrimMemory():
                trim()
            case LoadPart() | EndRank():
                # A process loads one model. A second load shows that the ranks have come apart.
                return False
        return True

    def close(self) -> None:
        for batch in self._batches.values():
            batch.generator.close()
        self._batches.clear()
        self._blocks.clear()
        self._joined.clear()
        self._model = None

    def _insert(self, order: InsertRow) -> None:
        caches = None if order.joined is None else self._joined.pop(order.joined)
        self._batches[order.batch].generator.insert(
            NewRow(order.segments, order.max_tokens, order.stop_token_ids, caches)
        )

    def _step(self, order: StepBatch) -> None:
        batch = self._batches[order.batch]
        stepped = batch.generator.step(order.chunk, watched=order.watched)
        finish_step(batch.generator.tap, watched=order.watched)
        batch.ended = stepped.ended

    def _row_caches(self, place: RowPlace) -> RowCaches:
        """The caches of a row, and the index of the row in them."""
        batch = self._batches[place.batch]
        match place.stage:
            case "ended":
                return batch.ended[place.row]
            case "answer":
                return RowCaches(batch.generator.answer_caches, place.row)
            case "prompt":
                return RowCaches(batch.generator.prompt_caches, place.row)


class _FollowedBatch:
    def __init__(self, model: Any, sampler: Sampler, order: OpenBatch) -> None:
        # Rank 0 watches the logits, which it may have alone.
        self.generator = Generator(
            Tap(model), sampler, order.rows, order.prompts, lends=False, watches=False
        )
        # The caches of rows that ended with the last step.
        self.ended: dict[int, RowCaches] = {}
