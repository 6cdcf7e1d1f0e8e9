"""The generator that leaves out what nobody reads makes the tokens of mlx-lm's own."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

from tests.support import shapes
from worker.engines.unscored import UnscoredGenerator
from worker.load.loading import load

PROMPTS = [[20, 21, 22], list(range(30, 70)), [80]]


def _responses(generator: Any) -> list[Any]:
    generator.insert(PROMPTS, max_tokens=[12, 5, 9])
    made: list[Any] = []
    while sum(each.finish_reason is not None for each in made) < len(PROMPTS):
        made += generator.next()[1]
    generator.close()
    return made


def test_rows_have_no_log_probabilities_once_they_are_in_the_batch() -> None:
    model = load(str(shapes.DEMO), lambda _done, _total: None, lambda: False).model
    own = _responses(BatchGenerator(model))
    unscored = _responses(UnscoredGenerator(model))
    assert [(each.uid, each.token) for each in unscored] == [(each.uid, each.token) for each in own]
    assert all(isinstance(each.logprobs, mx.array) for each in own)
    # The first token is one of a batch that mlx-lm makes of a prompt.
    later = [each for index, each in enumerate(unscored) if each.uid in _uids(unscored[:index])]
    assert len(later) == len(unscored) - len(PROMPTS)
    assert all(each.logprobs is None for each in later)


def _uids(responses: list[Any]) -> set[int]:
    return {each.uid for each in responses}
