"""A drafter's guesses are those of its model, whatever the rows did before."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from protocol.life import DRAFT_TOKENS
from tests.support import shapes
from worker.mlx_lm.decoding_row import RowStates
from worker.mlx_lm.drafting import DraftedRow, Drafting, DraftModel


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(shapes.DEMO)[0]


def _likeliest(_rows: Sequence[int]) -> Callable[[mx.array], mx.array]:
    return lambda logits: mx.argmax(logits, axis=-1)


def _continued(model: Any, tokens: list[int], count: int) -> list[int]:
    """The likeliest tokens after these, by mlx-lm's own cache."""
    cache = make_prompt_cache(model)
    logits, made = model(mx.array([tokens]), cache=cache), []
    for _ in range(count):
        made.append(int(mx.argmax(logits[0, -1]).item()))
        logits = model(mx.array([made[-1:]]), cache=cache)
    return made


def _row(uid: int, tokens: list[int], guesses: int) -> DraftedRow:
    return DraftedRow(uid, len(tokens), lambda number: tokens[number:], guesses, RowStates())


def test_rows_come_and_go_and_go_on_by_right_and_wrong_guesses(model: Any) -> None:
    chance = random.Random(3)
    drafting = Drafting(DraftModel(model))
    texts: dict[int, list[int]] = {}
    uid = 0
    for _ in range(12):
        while len(texts) < 3:
            uid += 1
            length = chance.choice((2, 3, 40, 130))
            texts[uid] = [chance.randrange(5, 600) for _ in range(length)]
        counts = {text: chance.choice((0, 1, 3, 5)) for text in texts}
        rows = [_row(index, tokens, counts[index]) for index, tokens in texts.items()]
        guesses, passes = drafting.guess(rows, _likeliest)
        assert passes <= max(counts.values())
        for (item, tokens), found in zip(texts.items(), guesses, strict=True):
            assert found == _continued(model, tokens, counts[item])
            right = found[: chance.randrange(len(found) + 1)]
            # Sometimes the row goes on by itself for a while.
            alone = chance.choice((1, 1, 1, 5, 80))
            tokens += right + [chance.randrange(5, 600) for _ in range(alone)]
        for text in list(texts):
            if chance.random() < 0.15 or len(texts[text]) > 400:
                del texts[text]
        drafting.retain(texts)


def test_a_row_goes_on_by_one_token_that_was_guessed(model: Any) -> None:
    """As while warming up measures guesses, and checks others than the drafter's."""
    drafting = Drafting(DraftModel(model))
    tokens = [5, 80, 41, 300]
    ((guesses,), _) = drafting.guess([_row(1, tokens, 3)], _likeliest)
    tokens.append(guesses[0])
    ((guesses,), _) = drafting.guess([_row(1, tokens, 3)], _likeliest)
    assert guesses == _continued(model, tokens, 3)


@pytest.mark.slow
def test_a_long_row_begins_anew_with_its_last_tokens(model: Any) -> None:
    chance = random.Random(4)
    tokens = [chance.randrange(5, 600) for _ in range(3000)]
    drafting = Drafting(DraftModel(model))
    ((first,), _) = drafting.guess([_row(1, tokens, 3)], _likeliest)
    assert first == _continued(model, tokens[-513:], 3)
    begun = 0
    while len(tokens) < 3000 + DRAFT_TOKENS:
        tokens += [chance.randrange(5, 600) for _ in range(60)]
        (guesses,), _ = drafting.guess([_row(1, tokens, 2)], _likeliest)
        assert len(guesses) == 2
        group = drafting._group
        assert group is not None
        assert max(leaf.keys.shape[2] for leaf in group.leaves) <= DRAFT_TOKENS
        begun += group.tokens[0] < 600
    assert 1 <= begun <= 3


def test_many_long_rows_begin_step_by_step(model: Any) -> None:
    chance = random.Random(5)
    rows = [_row(index, [chance.randrange(5, 600) for _ in range(700)], 2) for index in range(5)]
    drafting = Drafting(DraftModel(model))
    having = []
    for _ in range(3):
        guesses, _ = drafting.guess(rows, _likeliest)
        having.append(sum(bool(guess) for guess in guesses))
    assert having == [2, 4, 5]


def test_masks_apply_the_windows(tmp_path: Any) -> None:
    """A row that is longer than the window."""
    windowed, _ = load_model(shapes.sliding_window(tmp_path / "model"))
    chance = random.Random(6)
    tokens = [chance.randrange(5, 600) for _ in range(300)]
    ((guesses,), _) = Drafting(DraftModel(windowed)).guess([_row(1, tokens, 5)], _likeliest)
    assert guesses == _continued(windowed, tokens, 5)
