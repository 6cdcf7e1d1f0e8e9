"""A follower's side: the same batches with its part of the model, by rank 0's orders."""

from __future__ import annotations

from typing import Any

from worker.engines.limits import Limits
from worker.mlx_lm.generator import Generator, RowCaches, Sampler, Tap
from worker.prompt_cache.blocks import Block, Cutter
from worker.ranks.lead import finish_step
from worker.ranks.orders import (
    Begin,
    Close,
    Cut,
    Finish,
    Forget,
    Insert,
    Join,
    Open,
    Order,
    Place,
    Remove,
    Snapshot,
    Step,
    Take,
    Trim,
)
from worker.system.memory import trim


class _Batch:
    def __init__(self, model: Any, sampler: Sampler, order: Open) -> None:
        self.generator = Generator(Tap(model), sampler, order.rows, order.prompts, lends=False)
        # Of rows that ended with the last step.
        self.ended: dict[int, RowCaches] = {}


class Mirror:
    """Does what rank 0 does. All of it is called by the thread that owns MLX."""

    def __init__(self, model: Any, cutter: Cutter, limits: Limits, sampler: Sampler) -> None:
        self._model = model
        self._cutter = cutter
        self._limits = limits
        self._sampler = sampler
        self._batches: dict[int, _Batch] = {}
        self._kept: dict[int, Block] = {}
        self._joined: dict[int, list[Any]] = {}

    def obey(self, order: Order) -> bool:
        """Whether another order is to follow.

        Raises:
            KeyError: rank 0 speaks of what isn't there: the two have come apart.
        """
        match order:
            case Step():
                self._step(order)
            case Insert():
                self._insert(order)
            case Remove(batch, rows):
                self._batches[batch].generator.remove(rows)
            case Open(batch):
                self._batches[batch] = _Batch(self._model, self._sampler, order)
            case Close(batch):
                self._batches.pop(batch).generator.close()
            case Cut(place, first, last, number):
                blocks = self._cutter.cut(*self._at(place), first, last)
                self._kept.update(enumerate(blocks, start=number))
            case Snapshot(place, number):
                self._kept[number] = self._cutter.snapshot(*self._at(place))
            case Join(blocks, snapshot, number):
                self._joined[number] = self._cutter.join(
                    [self._kept[each] for each in blocks],
                    None if snapshot is None else self._kept[snapshot],
                )
            case Forget(numbers):
                for each in numbers:
                    del self._kept[each]
            case Take(limit_bytes, beside_bytes):
                self._limits.take(limit_bytes, beside_bytes)
                trim()
            case Trim():
                trim()
            case Begin() | Finish():
                return False
        return True

    def close(self) -> None:
        for each in self._batches.values():
            each.generator.close()
        self._batches.clear()
        self._kept.clear()
        self._joined.clear()
        self._model = None

    def _insert(self, order: Insert) -> None:
        caches = None if order.joined is None else self._joined.pop(order.joined)
        self._batches[order.batch].generator.insert(
            order.segments, order.max_tokens, order.stop_token_ids, caches
        )

    def _step(self, order: Step) -> None:
        batch = self._batches[order.batch]
        stepped = batch.generator.step(order.chunk, watched=order.watched)
        finish_step(batch.generator.tap, watched=order.watched)
        batch.ended = stepped.ended

    def _at(self, place: Place) -> RowCaches:
        """A row's caches, and its place among those of a batch."""
        batch = self._batches[place.batch]
        match place.stage:
            case "ended":
                return batch.ended[place.row]
            case "answer":
                return RowCaches(batch.generator.answer_caches, place.row)
            case "prompt":
                return RowCaches(batch.generator.prompt_caches, place.row)
