"""A follower's side: the same batches with its part of the model, by rank 0's orders."""

from __future__ import annotations

from typing import Any

from worker.engines.batch import until
from worker.engines.limits import Limits
from worker.engines.tap import LogitsTap
from worker.engines.unscored import UnscoredGenerator
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
from worker.ranks.tokens import Sampler
from worker.system.memory import trim


class _Batch:
    def __init__(self, model: Any, order: Open) -> None:
        self.tap = LogitsTap(model)
        self.generator = UnscoredGenerator(
            self.tap, completion_batch_size=order.rows, prefill_batch_size=order.prompts
        )
        # Of rows that ended with the last step.
        self.ended: dict[int, list[Any]] = {}


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
                self._batches[batch] = _Batch(self._model, order)
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
        self._batches[order.batch].generator.insert_segments(
            [order.segments],
            max_tokens=[order.max_tokens],
            caches=[caches],
            samplers=[self._sampler],
            stop_sequences=[until(order.stop_token_ids)],
        )

    def _step(self, order: Step) -> None:
        batch = self._batches[order.batch]
        batch.generator.prefill_step_size = order.chunk
        batch.tap.watches_prompts = order.watched
        _, responses = batch.generator.next()
        finish_step(batch.tap, watched=order.watched)
        batch.ended = {
            each.uid: each.prompt_cache for each in responses if each.finish_reason is not None
        }

    def _at(self, place: Place) -> tuple[list[Any], int]:
        """A row's caches, and its place among those of a batch."""
        batch = self._batches[place.batch]
        match place.stage:
            case "ended":
                return batch.ended[place.row], 0
            case "answer":
                return batch.generator._generation_batch.prompt_cache, place.row
            case "prompt":
                return batch.generator._prompt_batch.prompt_cache, place.row
