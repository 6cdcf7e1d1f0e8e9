"""The engine for vectors. It computes batches of texts of like length, alone or in turns with an
engine for text.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import mlx.core as mx
import numpy as np

from protocol.answers import Embedded, OutputInvalid
from worker.engines.pace import PrefillPace
from worker.engines.room import CacheRoom, compiles_kernels, largest_chunk
from worker.engines.sequence import (
    BrokenSequence,
    Engine,
    EngineNeed,
    Sequence,
    SpoiltSequence,
    Token,
)
from worker.engines.turns import SharerSeconds
from worker.guesses.costs import StepCosts
from worker.vectors.backbones import Backbone, PaddedTexts
from worker.vectors.heads import SHORTEST, PoolHead
from worker.vectors.jobs import TextPlace, TokenizedText, VectorJob, VectorKind, WaitingTexts
from worker.vectors.pooling import AllStates, Pool

# The vectors in one message, well within a worker's frame.
_PART_BYTES: Final = 512 << 10


class VectorEngine:
    """Computes vectors, batch after batch. Not thread-safe: the engine thread calls all methods."""

    def __init__(
        self,
        backbone: Backbone,
        heads: Mapping[VectorKind, PoolHead],
        room: CacheRoom,
        stall_s: float,
        pad_token_id: int,
        emit: Callable[[Embedded | OutputInvalid], None],
    ) -> None:
        """`stall_s` is how long a step may hold up an engine for text. A step of an encoder may
        take longer, since its texts can't be cut. `emit` gets the vectors, or a message that these
        aren't finite.
        """
        self._backbone = backbone
        self._heads = heads
        self._room = room
        self._pad_token_id = pad_token_id
        self._emit = emit
        self._largest = largest_chunk()
        self._pace = PrefillPace(
            self._largest,
            beside_decoding_s=stall_s,
            pair_elements=room.pair_elements,
            compiles=compiles_kernels(),
        )
        self._waiting: dict[VectorKind, WaitingTexts] = {}
        self._runs: dict[int, _JobRun] = {}
        self._numbers = itertools.count()
        self._batch: _TextBatch | None = None
        self._costs = SharerSeconds()

    @property
    def jobs(self) -> int:
        return len(self._runs)

    @property
    def computing(self) -> bool:
        """Whether a batch has begun and isn't done."""
        return self._batch is not None

    @property
    def next_bytes(self) -> int:
        """The memory of the smallest batch that could come next; 0 if no text waits."""
        longest = max((texts.longest() for texts in self._waiting.values()), default=0)
        return self._batch_bytes(1, longest) if longest else 0

    def add(self, job: VectorJob) -> None:
        number = next(self._numbers)
        self._runs[number] = _JobRun(job, len(job.texts))
        self._waiting.setdefault(job.kind, WaitingTexts())
        # With a query's vectors a document's become a score at once, and needn't be kept.
        self._await(number, job, 0, 1 if job.kind == "maxsim" else len(job.texts))

    def _await(self, number: int, job: VectorJob, begin: int, end: int) -> None:
        """Let the texts of a job from place `begin` to `end` wait."""
        lengths = [len(text.token_ids) for text in job.texts[begin:end]]
        waiting = self._waiting[job.kind]
        waiting.add(number, lengths, job.priority, job.sharer, job.share, begin)

    def remove(self, request_ids: Iterable[str]) -> None:
        gone = set(request_ids)
        for number in [n for n, run in self._runs.items() if run.job.request_id in gone]:
            job = self._runs.pop(number).job
            self._waiting[job.kind].remove(number)
        if self._batch and not any(place.job in self._runs for place in self._batch.places):
            self._end_batch()

    def step(self, *, beside_decoding: bool) -> None:
        """Compute a chunk of the batch that has begun, and send the vectors of finished jobs."""
        batch = self._batch
        assert batch is not None
        rows, longest = batch.texts.tokens.shape
        began_at = time.monotonic()
        width = longest
        if self._backbone.in_chunks:
            width = min(longest - batch.at, self._pace.chunk(rows, beside_decoding, batch.at))
        chunk = batch.texts.chunk(batch.at, batch.at + width)
        batch.pool.add(self._backbone.states(chunk, batch.caches))
        seconds = time.monotonic() - began_at
        self._pace.observe(rows * width, seconds, batch.at)
        self._costs.add(self._sharers(batch), seconds)
        batch.at += width
        if batch.at >= longest:
            self._finish(batch)

    def collect_costs(self) -> dict[str, float]:
        return self._costs.collect()

    def _sharers(self, batch: _TextBatch) -> list[str]:
        """The sharer of each text whose job hasn't been removed."""
        runs = (self._runs.get(place.job) for place in batch.places)
        return [run.job.sharer for run in runs if run is not None]

    def recompute_all(self) -> None:
        """Let the texts of the batch that has begun wait again, and make chunks shorter."""
        if self._batch is not None:
            places = [place for place in self._batch.places if place.job in self._runs]
            self._waiting[self._batch.kind].give_back(places)
            self._end_batch()
        self._pace.shorten()

    def close(self) -> None:
        self._end_batch()
        self._runs.clear()
        self._waiting.clear()
        del self._backbone, self._heads

    def _batch_bytes(self, rows: int, longest: int) -> int:
        shape = self._room.shape
        cached = int(shape.batch_bytes(rows, longest) * shape.peak)
        return cached + self._room.working_token_bytes * longest

    def _fits(self, rows: int, longest: int, free_bytes: int | None) -> bool:
        if not self._room.shape.fits_arrays(rows, longest):
            return False
        return free_bytes is None or self._batch_bytes(rows, longest) <= free_bytes

    def start_batch(self, free_bytes: int | None) -> bool:
        """Begin a batch, unless a batch has begun. Return False if no text waits, or if there is no
        room for a batch. `free_bytes` is the memory that running sequences leave; None: unlimited.
        """
        if self._batch is not None:
            return True
        kind = next(
            (kind for kind, waiting_texts in self._waiting.items() if len(waiting_texts)), None
        )
        if kind is None:
            return False
        waiting = self._waiting[kind]
        longest = waiting.reach()
        if not self._fits(1, longest, free_bytes):
            longest = waiting.longest()
            if not self._fits(1, longest, free_bytes):
                return False
        most = self._largest if self._backbone.in_chunks else self._pace.chunk(1, decoding=False)
        while not self._fits(max(1, most // longest), longest, free_bytes):
            most //= 2
        places = waiting.next_batch(most, longest)
        # The other kinds have their turns before this kind comes again.
        self._waiting[kind] = self._waiting.pop(kind)
        texts = [self._runs[place.job].job.texts[place.place] for place in places]
        lengths = [len(text.token_ids) for text in texts]
        head = self._heads[kind]
        self._room.vector_bytes = self._batch_bytes(len(texts), max(lengths))
        self._batch = _TextBatch(
            kind,
            places,
            PaddedTexts(
                _padded([tokenized_text.token_ids for tokenized_text in texts], self._pad_token_id),
                _types(texts),
                lengths,
                [text.unseen for text in texts] if any(text.unseen for text in texts) else None,
            ),
            Pool(head.poolings, lengths, [text.skipped for text in texts])
            if head.poolings
            else AllStates(),
            self._backbone.make_caches(),
        )
        return True

    def _end_batch(self) -> None:
        self._batch = None
        self._room.vector_bytes = 0

    def _finish(self, batch: _TextBatch) -> None:
        vectors = np.array(self._heads[batch.kind](batch.pool.result()).astype(mx.float32))
        self._end_batch()
        for place, vector in zip(batch.places, vectors, strict=True):
            run = self._runs.get(place.job)
            if run is None:
                continue
            if run.job.kind == "maxsim":
                vector = run.scored(place, vector)
            run.vectors[place.place] = vector
            run.left -= 1
            valid = bool(np.isfinite(vector).all())
            if valid and run.job.kind == "maxsim" and place.place == 0:
                self._await(place.job, run.job, 1, len(run.job.texts))
            if not run.left or not valid:
                del self._runs[place.job]
                self._waiting[batch.kind].remove(place.job)
                if valid:
                    self._send(run)
                else:
                    self._emit(OutputInvalid(request_id=run.job.request_id, goes_on=False))

    def _send(self, run: _JobRun) -> None:
        job = run.job
        first = 1 if job.kind == "maxsim" else 0
        rows = np.stack([run.vectors[index] for index in range(first, len(job.texts))])
        tokens = sum(len(text.token_ids) for text in job.texts)
        if job.dimensions is not None:
            rows = rows[:, : job.dimensions]
        if job.kind == "cosine":
            rows = _unit(rows)
            # Rounding can bring a cosine beyond 1.
            rows = np.clip(rows[1:] @ rows[:1].T, -1.0, 1.0)
        elif self._heads[job.kind].normalized or job.dimensions is not None:
            rows = _unit(rows)
        rows = np.ascontiguousarray(rows, "<f4")
        number = max(1, _PART_BYTES // rows[0].nbytes)
        for begin in range(0, len(rows), number):
            self._emit(
                Embedded(
                    request_id=job.request_id,
                    dimensions=rows.shape[1],
                    vectors=rows[begin : begin + number].tobytes(),
                    tokens=tokens if not begin else 0,
                    last=begin + number >= len(rows),
                )
            )


@dataclass
class _JobRun:
    """A job that isn't done. `left` texts have no vector yet; `vectors` are by places of texts."""

    job: VectorJob
    left: int
    vectors: dict[int, np.ndarray[Any, Any]] = field(default_factory=dict)

    def scored(self, place: TextPlace, vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The vectors of the query's tokens, or the score of a document, of the vectors of a padded
        text: for each token of the query the largest product with a token of the document, in sum.
        """
        text = self.job.texts[place.place]
        vectors = vectors[: len(text.token_ids)]
        if text.counted is not None:
            vectors = vectors[text.counted]
        if place.place == 0:
            return vectors
        return np.array([(self.vectors[0] @ vectors.T).max(axis=1).sum()])


@dataclass
class _TextBatch:
    """A batch of texts, of which the tokens before `at` are computed. `caches` are its caches."""

    kind: VectorKind
    places: list[TextPlace]
    texts: PaddedTexts
    pool: Pool | AllStates
    caches: Any
    at: int = 0


def _unit(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    unit: np.ndarray[Any, Any] = rows / np.maximum(
        np.linalg.norm(rows, axis=1, keepdims=True), SHORTEST
    )
    return unit


def _padded(rows: list[list[int]], pad: int) -> mx.array:
    longest = max(map(len, rows))
    return mx.array([row + [pad] * (longest - len(row)) for row in rows])


def _types(texts: list[TokenizedText]) -> mx.array | None:
    types = [text.types or [0] * len(text.token_ids) for text in texts]
    return _padded(types, 0) if any(map(any, types)) else None


class NoText:
    """The engine for text of a model that writes no text. The gateway sends it no sequences."""

    batching = True
    step_costs: StepCosts | None = None
    most_rows = 0
    need = EngineNeed(0, 0, 0)
    short = False
    fetching = False
    active = 0
    waiting = 0

    def make_room(self) -> None: ...

    def remove_hopeless(self) -> list[Sequence]:
        return []

    def remove_broken(self) -> list[BrokenSequence]:
        return []

    def collect_spoilt(self) -> list[SpoiltSequence]:
        return []

    def add(self, sequence: Sequence) -> None:
        raise TypeError(f"{sequence.request_id} asks for text.")

    def remove(self, request_ids: Iterable[str]) -> None: ...

    def step(self) -> list[Token]:
        return []

    def store_blocks(self) -> None: ...

    def collect_costs(self) -> dict[str, float]:
        return {}

    def clear_prompts(self) -> int:
        return 0

    def recompute_all(self) -> bool:
        return True

    def close(self) -> None: ...


class WithVectors:
    """An engine for text and an engine for vectors, as one engine. A step computes a chunk of
    vectors and a step of text.
    """

    def __init__(self, text: Engine, vectors: VectorEngine, room: CacheRoom) -> None:
        self.batching = text.batching
        self.step_costs = text.step_costs
        self._text = text
        self._vectors = vectors
        self._room = room
        # Whether the next batch of vectors found no room.
        self._held = False

    @property
    def need(self) -> EngineNeed:
        text = self._text.need
        if not self._vectors.jobs:
            return text
        running_bytes = max(text.used_bytes, self._room.needed_bytes([]))
        wanted_bytes = running_bytes + (0 if self._vectors.computing else self._vectors.next_bytes)
        return text._replace(
            used_bytes=running_bytes if self._vectors.computing else text.used_bytes,
            wanted_bytes=max(text.wanted_bytes, wanted_bytes),
            least_bytes=text.least_bytes or wanted_bytes,
        )

    @property
    def most_rows(self) -> int:
        return self._text.most_rows

    @property
    def short(self) -> bool:
        return self._text.short or self._held

    @property
    def fetching(self) -> bool:
        return self._text.fetching

    @property
    def active(self) -> int:
        return self._text.active + (0 if self._held else self._vectors.jobs)

    @property
    def waiting(self) -> int:
        return self._text.waiting + (self._vectors.jobs if self._held else 0)

    def make_room(self) -> None:
        self._text.make_room()

    def remove_hopeless(self) -> list[Sequence]:
        return self._text.remove_hopeless()

    def remove_broken(self) -> list[BrokenSequence]:
        return self._text.remove_broken()

    def collect_spoilt(self) -> list[SpoiltSequence]:
        return self._text.collect_spoilt()

    def add(self, sequence: Sequence) -> None:
        self._text.add(sequence)

    def add_job(self, job: VectorJob) -> None:
        self._vectors.add(job)

    def remove(self, request_ids: Iterable[str]) -> None:
        gone = list(request_ids)
        self._text.remove(gone)
        self._vectors.remove(gone)
        self._held = self._held and self._vectors.jobs > 0

    def step(self) -> list[Token]:
        if self._vectors.jobs:
            self._held = not self._vectors.start_batch(self._free_bytes())
            if not self._held:
                # The batch may need the room of cached prompts.
                self._text.make_room()
                self._vectors.step(beside_decoding=self._text.active > 0)
        if self._text.active + self._text.waiting == 0:
            return []
        return self._text.step()

    def store_blocks(self) -> None:
        self._text.store_blocks()

    def collect_costs(self) -> dict[str, float]:
        return dict(Counter(self._text.collect_costs()) + Counter(self._vectors.collect_costs()))

    def clear_prompts(self) -> int:
        return self._text.clear_prompts()

    def recompute_all(self) -> bool:
        self._vectors.recompute_all()
        return self._text.recompute_all()

    def close(self) -> None:
        self._text.close()
        self._vectors.close()

    def _free_bytes(self) -> int | None:
        """The memory that running sequences leave; None if the process has no limit."""
        if self._room.limit_bytes is None:
            return None
        running_bytes = max(self._text.need.used_bytes, self._room.needed_bytes([]))
        return self._room.limit_bytes - running_bytes
