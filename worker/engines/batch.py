"""One batch of sequences that decode together: mlx-lm's BatchGenerator, and what it was given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from mlx_lm.generate import BatchGenerator, StopSequences

from worker.engines.pace import PrefillPace
from worker.engines.room import Batch
from worker.engines.sequence import Sequence, Token

PREFILL_ROWS: Final = 8
# A step makes a token, and mlx-lm has begun the next one when it gives it out.
AHEAD_TOKENS: Final = 2


@dataclass
class Row:
    """A sequence in the batch, and what it has made there. They are numbered as they come."""

    sequence: Sequence
    number: int = 0
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

    def prefills(self, row: Row) -> bool:
        """Whether a row of this batch computes its prompt."""
        return any(self._rows[uid] is row for uid in self._prefilling)

    @property
    def decodes(self) -> bool:
        return len(self._rows) > len(self._prefilling)

    @property
    def size(self) -> Batch:
        """After the next step."""
        longest = max((each.tokens for each in self._rows.values()), default=0)
        return Batch(len(self._rows), longest + AHEAD_TOKENS)

    def insert(self, sequence: Sequence, number: int) -> None:
        (uid,) = self._generator.insert(
            [sequence.token_ids],
            max_tokens=[sequence.max_tokens],
            samplers=[sequence.sampler],
            logits_processors=[list(sequence.processors)],
            stop_sequences=[self._until_length if sequence.ignore_eos else self._until_eos],
        )
        self._rows[uid] = Row(sequence, number)
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
            _, responses = self._generator.next()
        else:
            responses = self._step_with_prefill(beside_decoding=beside_decoding)
        tokens = []
        for response in responses:
            row = self._rows[response.uid]
            row.generated.append(response.token)
            tokens.append(Token(row.sequence.request_id, response.token, response.finish_reason))
            if response.finish_reason is not None:
                del self._rows[response.uid]
                self._prefilling.discard(response.uid)
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
        return responses

    def _take_out(self, uids: list[int]) -> None:
        if uids:
            self._generator.remove(uids)
        for uid in uids:
            del self._rows[uid]
            self._prefilling.discard(uid)
