"""One sequence at a time, for models whose caches can't be merged into a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from time import perf_counter
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step

from worker.engines.need import Need
from worker.engines.pace import PrefillPace
from worker.engines.room import Batch, Room, largest_chunk
from worker.engines.sequence import Sequence, Token
from worker.sampling.batch import BatchSampler


class _RemovedInPrefillError(Exception):
    """Raised through mlx-lm's prefill, which offers no other way out."""


class SequentialEngine:
    """First come, first served.

    `between_chunks` is called with every chunk of a prefill, since a step here lasts as long as
    the whole prompt: it may call `remove` and `make_room`.
    """

    batching = False

    def __init__(
        self,
        model: Any,
        eos_token_ids: Iterable[int],
        room: Room,
        between_chunks: Callable[[], None],
    ) -> None:
        self._model = model
        self._eos_token_ids = frozenset(eos_token_ids)
        self._room = room
        self._between_chunks = between_chunks
        self._waiting: deque[Sequence] = deque()
        self._current: Sequence | None = None
        self._tokens: Generator[tuple[int, mx.array], None, None] | None = None
        self._generated: list[int] = []
        self._pace = PrefillPace(largest_chunk())
        self._begun = 0

    @property
    def active(self) -> int:
        return 0 if self._current is None else 1

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def short(self) -> bool:
        return self._current is None and bool(self._waiting) and not self._next_fits

    @property
    def fetching(self) -> bool:
        return False

    @property
    def need(self) -> Need:
        if self._current is not None:
            bytes_ = self._room.needed_bytes([Batch(1, self._tokens_soon())])
            return Need(bytes_, bytes_, bytes_, 0 if self._generated else self._begun)
        if self._waiting:
            bytes_ = self._room.needed_bytes([Batch(1, len(self._waiting[0].token_ids))])
            return Need(0, bytes_, bytes_)
        return Need(0, 0, 0)

    def make_room(self) -> None:
        sequence = self._current
        if sequence is None or self._room.holds([Batch(1, self._tokens_soon())]):
            return
        self._waiting.appendleft(sequence.rest(self._generated))
        self._current = self._tokens = None

    def take_hopeless(self) -> list[Sequence]:
        hopeless = [
            each for each in self._waiting if not self._room.could_hold(each.sure_tokens(ahead=1))
        ]
        for each in hopeless:
            self._waiting.remove(each)
        return hopeless

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def remove(self, request_ids: Iterable[str]) -> None:
        removed = set(request_ids)
        self._waiting = deque(each for each in self._waiting if each.request_id not in removed)
        if self._current is not None and self._current.request_id in removed:
            self._current = None

    def step(self) -> list[Token]:
        self.make_room()
        if self._current is None:
            self._begin_next()
        sequence = self._current
        if sequence is None or self._tokens is None:
            return []
        try:
            token_id, _ = next(self._tokens)
        except _RemovedInPrefillError:
            return []
        self._generated.append(token_id)
        token = Token(sequence.request_id, token_id, None)
        if token_id in self._eos_token_ids and not sequence.ignore_eos:
            token = Token(sequence.request_id, token_id, "stop")
        elif len(self._generated) >= sequence.max_tokens:
            token = Token(sequence.request_id, token_id, "length")
        if token.finish_reason is not None:
            self._current = None
        return [token]

    def clear_prompts(self) -> int:
        return 0

    def close(self) -> None:
        self._waiting.clear()
        self._current = None
        self._tokens = None
        self._model = None

    def _tokens_soon(self) -> int:
        """Of the sequence that runs, after the next step."""
        assert self._current is not None
        return len(self._current.token_ids) + len(self._generated) + 1

    @property
    def _next_fits(self) -> bool:
        return self._room.holds([Batch(1, len(self._waiting[0].token_ids))])

    def _begin_next(self) -> None:
        self._tokens = None
        if not self._waiting or not self._next_fits:
            return
        self._current = sequence = self._waiting.popleft()
        self._generated = []
        self._begun += 1
        last_s = perf_counter()
        last_tokens = 0

        def on_prefill(processed: int, _total: int) -> None:
            nonlocal last_s, last_tokens
            now_s = perf_counter()
            self._pace.observe(processed - last_tokens, now_s - last_s)
            last_s, last_tokens = now_s, processed
            self._between_chunks()
            if self._current is not sequence:
                raise _RemovedInPrefillError

        sampler = BatchSampler(lambda: (sequence.request_id,))
        sampler.add(sequence.request_id, sequence.sampling)
        self._tokens = generate_step(
            mx.array(sequence.token_ids),
            self._model,
            max_tokens=sequence.max_tokens,
            sampler=sampler,
            logits_processors=list(sequence.processors),
            prefill_step_size=self._pace.chunk(rows=1, decoding=False),
            prompt_progress_callback=on_prefill,
        )
