"""One batch of sequences that decode together: mlx-lm's BatchGenerator, and what it was given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from mlx_lm.generate import BatchGenerator, StopSequences

from worker.engines.order import RowOrder
from worker.engines.pace import PrefillPace
from worker.engines.room import Batch
from worker.engines.sequence import Sequence, Token
from worker.sampling.batch import BatchSampler

PREFILL_ROWS: Final = 8
# A step makes a token, and mlx-lm has begun the next one when it gives it out.
AHEAD_TOKENS: Final = 2


@dataclass
class Row:
    """A sequence in the batch, and what it has made there."""

    sequence: Sequence
    generated: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return len(self.sequence.token_ids) + len(self.generated)

    @property
    def most_tokens(self) -> int:
        """How long it may become."""
        return len(self.sequence.token_ids) + self.sequence.max_tokens


class RowBatch:
    """Sequences join and leave between steps."""

    def __init__(self, model: Any, until_eos: StopSequences, max_rows: int, largest: int) -> None:
        """`largest` is the most tokens of one prompt in a chunk."""
        self._generator = BatchGenerator(
            model,
            completion_batch_size=max_rows,
            prefill_batch_size=min(PREFILL_ROWS, max_rows),
        )
        self._order = RowOrder(self._generator)
        self._sampler = BatchSampler(self._order)
        self._until_eos = until_eos
        self._until_length = StopSequences()
        self._pace = PrefillPace(largest)
        # In the order in which they came.
        self._rows: dict[int, Row] = {}
        self._prefilling: set[int] = set()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> Iterable[Row]:
        return self._rows.values()

    @property
    def begun_later(self) -> int:
        """Rows whose prefill mlx-lm hasn't begun; it takes so many at a time, and tells nowhere
        which.
        """
        return max(0, len(self._prefilling) - PREFILL_ROWS)

    @property
    def decodes(self) -> bool:
        return len(self._rows) > len(self._prefilling)

    @property
    def size(self) -> Batch:
        """After the next step."""
        longest = max((each.tokens for each in self._rows.values()), default=0)
        return Batch(len(self._rows), longest + AHEAD_TOKENS)

    def insert(self, sequence: Sequence) -> None:
        (uid,) = self._generator.insert(
            [sequence.token_ids],
            max_tokens=[sequence.max_tokens],
            samplers=[self._sampler],
            logits_processors=[list(sequence.processors)],
            stop_sequences=[self._until_length if sequence.ignore_eos else self._until_eos],
        )
        self._order.insert(uid)
        self._sampler.add(uid, sequence.sampling)
        self._rows[uid] = Row(sequence)
        self._prefilling.add(uid)

    def remove(self, request_ids: set[str]) -> None:
        """Unknown ids are ignored."""
        self._take_out(
            [uid for uid, row in self._rows.items() if row.sequence.request_id in request_ids]
        )

    def least_missed(self) -> tuple[int, Row]:
        """The row that is to leave first, by the id for `put_aside`: the last of those that came
        with the lowest priority.
        """
        return min(reversed(self._rows.items()), key=lambda each: each[1].sequence.priority)

    def put_aside(self, uid: int) -> Sequence:
        """Take a row out; returns what is left of it to do."""
        row = self._rows[uid]
        self._take_out([uid])
        return row.sequence.rest(row.generated)

    def step(self, *, beside_decoding: bool) -> list[Token]:
        """`beside_decoding`: rows of another batch wait meanwhile."""
        if not self._prefilling:
            prompt_responses, responses = self._generator.next()
        else:
            prompt_responses, responses = self._step_with_prefill(beside_decoding=beside_decoding)
        self._order.observe(prompt_responses, responses)
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

    def _step_with_prefill(self, *, beside_decoding: bool) -> Any:
        rows = min(len(self._prefilling), PREFILL_ROWS)
        self._generator.prefill_step_size = self._pace.chunk(rows, self.decodes or beside_decoding)
        with self._generator.stats() as stats:
            prompt_responses, responses = self._generator.next()
        self._pace.observe(stats.prompt_tokens, stats.prompt_time)
        for response in prompt_responses:
            if response.end_of_prompt:
                self._prefilling.discard(response.uid)
        return prompt_responses, responses

    def _take_out(self, uids: list[int]) -> None:
        if uids:
            self._generator.remove(uids)
        self._order.remove(uids)
        for uid in uids:
            self._forget(uid)

    def _forget(self, uid: int) -> None:
        self._sampler.remove(uid)
        del self._rows[uid]
        self._prefilling.discard(uid)
