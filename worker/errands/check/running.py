"""Runs prompts through the engines that workers use."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, measure
from worker.engines.sequence import Engine, Sequence, Token
from worker.engines.sequential import SequentialEngine
from worker.errands.check.subject import InvalidNumbersError, Subject, UncheckedError
from worker.mlx_lm.batching_trial import try_batching
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.path import Paths, root_key

_names = count()
# A run may take so much longer than the check has.
_GRACE_S: Final = 5.0


@dataclass(frozen=True)
class RunAnswer:
    """The tokens of an answer with the two likeliest tokens at each place and their log
    probabilities. `ended`: the model ended it by itself.
    """

    tokens: list[int] = field(default_factory=list)
    likeliest: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    cached_tokens: int = 0
    ended: bool = False


class Runner:
    """A model in an engine of its own: a batch, or one request at a time where a model must."""

    def __init__(
        self,
        subject: Subject,
        *,
        kv_bits: int | None = None,
        guesses: bool = False,
        cached: bool = False,
        rows: int = 1,
    ) -> None:
        loaded, self._subject = subject.writer, subject
        caches = Caches(loaded.model, kv_bits)
        room = CacheRoom(measure(caches.run, caches.make))
        self.alone = try_batching(caches.model).fault or ""
        cutter = Cutter(caches.run, caches.make)
        self._paths = Paths(root_key("check"), None, needs_snapshots=cutter.needs_snapshots)
        prompts = PromptCache(cutter, None) if cached and cutter.can_restore else None
        self.caches = prompts is not None
        ends = tuple(loaded.eos_token_ids)
        if self.alone:
            self._engine: Engine = SequentialEngine(loaded.model, ends, room, caches, prompts)
        else:
            self._engine = BatchedEngine(caches.model, ends, rows, room, prompts, guesses=guesses)

    def answers(
        self, prompts: Many[list[int]], tokens: int, *, ends: bool = False
    ) -> list[RunAnswer]:
        """The likeliest answers to prompts that come at once. With `ends` a model's own end token
        ends an answer.

        Raises:
            InvalidNumbersError
            UncheckedError: the check's time is over.
        """
        names = [f"check-{next(_names)}" for _ in prompts]
        got: dict[str, list[Token]] = {name: [] for name in names}
        for name, prompt in zip(names, prompts, strict=True):
            path = self._paths.find(prompt, "") if self.caches else None
            self._engine.add(
                Sequence(
                    name,
                    prompt,
                    tokens,
                    sampling=None,
                    ignore_eos=not ends,
                    logprobs=2,
                    path=path,
                )
            )
        while any(not given or given[-1].finish_reason is None for given in got.values()):
            for token in self._engine.step():
                got[token.request_id].append(token)
            self._engine.store_blocks()
            if any(not spoilt.goes_on for spoilt in self._engine.collect_spoilt()):
                raise InvalidNumbersError
            if self._subject.left_s < -_GRACE_S:
                raise UncheckedError("The time was over before the answers were.")
        return [_answer(got[name]) for name in names]

    def close(self) -> None:
        self._engine.close()


def _answer(tokens: list[Token]) -> RunAnswer:
    ended = tokens[-1].finish_reason == "stop"
    return RunAnswer(
        [token.token_id for token in tokens],
        [() if token.score is None else token.score.top for token in tokens],
        max(token.cached_tokens for token in tokens),
        ended,
    )
