"""Continuous batching with mlx-lm's BatchGenerator."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from mlx_lm.generate import BatchGenerator, StopSequences

from worker.engines.pace import PrefillPace
from worker.engines.room import CacheRoom, largest_chunk
from worker.engines.sequence import Sequence, Token

_PREFILL_ROWS = 8
# A step makes a token, and mlx-lm has begun the next one when it gives it out.
_AHEAD_TOKENS = 2


@dataclass
class _Row:
    """A sequence in the batch, and what it has made there."""

    sequence: Sequence
    generated: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return len(self.sequence.token_ids) + len(self.generated)

    def rest(self) -> Sequence:
        """What is left to do for another turn in the batch."""
        done, sampler = len(self.generated), self.sequence.sampler
        return replace(
            self.sequence,
            token_ids=self.sequence.token_ids + self.generated,
            max_tokens=self.sequence.max_tokens - done,
            # mlx-lm samples a step ahead of what it gives out.
            sampler=None if sampler is None else sampler.again_after(done),
        )


class BatchedEngine:
    """Sequences join and leave the batch between steps.

    mlx-lm takes in what it is given, whatever memory that needs. So what doesn't fit is kept
    here; and if a batch outgrows its room, the last to come leaves it and is computed anew later.
    """

    batching = True

    def __init__(
        self, model: Any, eos_token_ids: Iterable[int], max_concurrency: int, room: CacheRoom
    ) -> None:
        self._generator = BatchGenerator(
            model,
            completion_batch_size=max_concurrency,
            prefill_batch_size=min(_PREFILL_ROWS, max_concurrency),
        )
        self._until_eos = StopSequences([(token,) for token in eos_token_ids])
        self._until_length = StopSequences()
        self._max_concurrency = max_concurrency
        self._room = room
        self._pace = PrefillPace(largest_chunk())
        self._held: deque[Sequence] = deque()
        # In the order in which they came.
        self._rows: dict[int, _Row] = {}
        self._uid_of: dict[str, int] = {}
        self._prefilling: set[int] = set()

    @property
    def active(self) -> int:
        return len(self._rows) - self._begun_later

    @property
    def waiting(self) -> int:
        return len(self._held) + self._begun_later

    @property
    def _begun_later(self) -> int:
        # mlx-lm tells nowhere which sequences it has begun; its prefill takes so many at a time.
        return max(0, len(self._prefilling) - _PREFILL_ROWS)

    def add(self, sequence: Sequence) -> None:
        self._held.append(sequence)

    def remove(self, request_ids: Iterable[str]) -> None:
        removed = set(request_ids)
        self._held = deque(each for each in self._held if each.request_id not in removed)
        uids = [self._uid_of[each] for each in removed if each in self._uid_of]
        if uids:
            self._generator.remove(uids)
            for uid in uids:
                self._forget(uid)

    def step(self) -> list[Token]:
        self._make_room()
        self._take_in()
        if not self._prefilling:
            _, responses = self._generator.next()
        else:
            responses = self._step_with_prefill()
        tokens = []
        for response in responses:
            row = self._rows[response.uid]
            row.generated.append(response.token)
            tokens.append(Token(row.sequence.request_id, response.token, response.finish_reason))
            if response.finish_reason is not None:
                self._forget(response.uid)
        return tokens

    def close(self) -> None:
        self._generator.close()
        del self._generator

    def _longest_soon(self) -> int:
        """Tokens of the longest row after the next step."""
        return max((each.tokens for each in self._rows.values()), default=0) + _AHEAD_TOKENS

    def _take_in(self) -> None:
        while self._held and len(self._rows) < self._max_concurrency:
            sequence = self._held[0]
            tokens = len(sequence.token_ids) + _AHEAD_TOKENS
            if not self._room.takes(len(self._rows), self._longest_soon(), tokens):
                return
            self._insert(self._held.popleft())

    def _make_room(self) -> None:
        while len(self._rows) > 1 and not self._room.holds(len(self._rows), self._longest_soon()):
            uid, row = next(reversed(self._rows.items()))
            self._generator.remove([uid])
            self._forget(uid)
            self._held.appendleft(row.rest())

    def _insert(self, sequence: Sequence) -> None:
        (uid,) = self._generator.insert(
            [sequence.token_ids],
            max_tokens=[sequence.max_tokens],
            samplers=[sequence.sampler],
            stop_sequences=[self._until_length if sequence.ignore_eos else self._until_eos],
        )
        self._rows[uid] = _Row(sequence)
        self._uid_of[sequence.request_id] = uid
        self._prefilling.add(uid)

    def _step_with_prefill(self) -> Any:
        decoding = len(self._rows) > len(self._prefilling)
        rows = min(len(self._prefilling), _PREFILL_ROWS)
        self._generator.prefill_step_size = self._pace.chunk(rows, decoding)
        with self._generator.stats() as stats:
            prompt_responses, responses = self._generator.next()
        self._pace.observe(stats.prompt_tokens, stats.prompt_time)
        for response in prompt_responses:
            if response.end_of_prompt:
                self._prefilling.discard(response.uid)
        return responses

    def _forget(self, uid: int) -> None:
        del self._uid_of[self._rows.pop(uid).sequence.request_id]
        self._prefilling.discard(uid)
