"""The answers of a batch in which a drafter guesses."""

from __future__ import annotations

from typing import Any

from worker.engines.batched_engine import BatchedEngine
from worker.engines.room import NO_CACHES, CacheRoom
from worker.engines.row_computer import sizes_with
from worker.engines.sequence import Sequence, Token
from worker.mlx_lm.guessing import Draft


def made_with(
    model: Any, draft: Draft, prompts: list[list[int]], most_tokens: int, *, guesses: bool = True
) -> list[list[Token]]:
    """The answers to prompts that come one after another, from a batch of three rows. The longest
    answers have `most_tokens` tokens.
    """
    room = CacheRoom(sizes_with(draft, NO_CACHES))
    engine = BatchedEngine(model, (), 3, room, guesses=guesses, draft=draft)
    # As on a machine where a wide step costs hardly more, and the drafter nothing.
    engine.step_costs.ratio = lambda rows, width: float(width > 0)  # type: ignore[method-assign]
    made: dict[str, list[Token]] = {}
    for index, prompt in enumerate(prompts):
        # Rows end at different times.
        tokens = most_tokens - 5 * (index % 3)
        engine.add(Sequence(f"{index}", prompt, tokens, None, ignore_eos=True))
        made[f"{index}"] = []
    while engine.active + engine.waiting:
        for token in engine.step():
            made[token.request_id].append(token)
    engine.close()
    return list(made.values())


def texts(answers: list[list[Token]]) -> list[list[int]]:
    """The token ids of each answer."""
    return [[token.token_id for token in answer] for answer in answers]
