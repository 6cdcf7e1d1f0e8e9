"""Continuous batching with mlx-lm's BatchGenerator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlx_lm.generate import BatchGenerator, StopSequences

from worker.engines.pace import PrefillPace
from worker.engines.sequence import Sequence, Token

_PREFILL_ROWS = 8


class BatchedEngine:
    """Sequences join and leave the batch between steps."""

    batching = True

    def __init__(self, model: Any, eos_token_ids: Iterable[int], max_concurrency: int) -> None:
        self._generator = BatchGenerator(
            model,
            completion_batch_size=max_concurrency,
            prefill_batch_size=min(_PREFILL_ROWS, max_concurrency),
        )
        self._until_eos = StopSequences([(token,) for token in eos_token_ids])
        self._until_length = StopSequences()
        self._pace = PrefillPace()
        self._request_of: dict[int, str] = {}
        self._uid_of: dict[str, int] = {}
        self._prefilling: set[int] = set()

    @property
    def active(self) -> int:
        return len(self._uid_of) - self.waiting

    @property
    def waiting(self) -> int:
        # mlx-lm tells nowhere which sequences it has begun; its prefill takes so many at a time.
        return max(0, len(self._prefilling) - _PREFILL_ROWS)

    def add(self, sequence: Sequence) -> None:
        (uid,) = self._generator.insert(
            [sequence.token_ids],
            max_tokens=[sequence.max_tokens],
            samplers=[sequence.sampler],
            stop_sequences=[self._until_length if sequence.ignore_eos else self._until_eos],
        )
        self._request_of[uid] = sequence.request_id
        self._uid_of[sequence.request_id] = uid
        self._prefilling.add(uid)

    def remove(self, request_ids: Iterable[str]) -> None:
        uids = [self._uid_of[each] for each in request_ids if each in self._uid_of]
        if uids:
            self._generator.remove(uids)
            for uid in uids:
                self._forget(uid)

    def step(self) -> list[Token]:
        if not self._prefilling:
            _, responses = self._generator.next()
        else:
            responses = self._step_with_prefill()
        tokens = []
        for response in responses:
            tokens.append(
                Token(self._request_of[response.uid], response.token, response.finish_reason)
            )
            if response.finish_reason is not None:
                self._forget(response.uid)
        return tokens

    def close(self) -> None:
        self._generator.close()
        del self._generator

    def _step_with_prefill(self) -> Any:
        decoding = len(self._uid_of) > len(self._prefilling)
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
        del self._uid_of[self._request_of.pop(uid)]
        self._prefilling.discard(uid)
