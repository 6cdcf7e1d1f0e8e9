"""A model's own head guesses in batches, and the text is the same as without it."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.drafted_answers import made_with, texts
from tests.support.own_heads import CONFIGS, VOCABULARY, OwnHead, write
from worker.engines.decoding import Caches
from worker.engines.row_computer import make_head_draft
from worker.engines.sequence import Token
from worker.load.loading import load_weights

TOKENS = 30


def made_by(model: Any, prompts: list[list[int]], *, guesses: bool) -> list[list[Token]]:
    draft = make_head_draft(model, 3)
    assert draft is not None
    return made_with(model, draft, prompts, TOKENS, guesses=guesses)


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_text_is_the_same(kind: str, tmp_path: Path) -> None:
    own = OwnHead(kind)
    model, _ = load_weights(write(tmp_path, own.config, own.converted()), own_head=True)
    chance = random.Random(1)
    prompts = [
        [chance.randrange(5, VOCABULARY) for _ in range(count)] for count in (3, 40, 17, 1, 29)
    ]
    with_head = made_by(model, prompts, guesses=True)
    assert texts(with_head) == texts(made_by(model, prompts, guesses=False))
    # A random head guesses, though hardly ever right.
    assert sum(token.rejected for answer in with_head for token in answer) > TOKENS


@pytest.mark.slow
@pytest.mark.parametrize("by", ["token", "state"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_head_that_is_always_right(kind: str, by: str, tmp_path: Path) -> None:
    """The model's next token depends on the last token alone, and its head knows that: by the token
    that it gets, or by the state of the token before.
    """
    own = OwnHead(kind, tie_word_embeddings=False)
    follows = own.forget_context(by)
    model, _ = load_weights(write(tmp_path, own.config, own.converted()), own_head=True)
    prompts = [[5 + index, 9 + index] for index in range(4)]
    answers = made_by(model, prompts, guesses=True)
    for prompt, answer in zip(prompts, answers, strict=True):
        token_ids = [prompt[-1], *(token.token_id for token in answer)]
        assert all(follows[one] == other for one, other in pairwise(token_ids))
        assert sum(token.rejected for token in answer) == 0
        # The head begins with the second token. Then a step makes four tokens.
        steps = sum(not token.guessed for token in answer)
        assert steps == 1 + -(-(len(answer) - 1) // 4)


def test_with_quantized_caches(tmp_path: Path) -> None:
    own = OwnHead("glm4_moe", head_dim=64)
    folder = write(tmp_path, own.config, own.converted())
    model = Caches(load_weights(folder, own_head=True)[0], kv_bits=8).model
    prompts = [[5, 6, 7, 8], [100] * 30]
    with_head = made_by(model, prompts, guesses=True)
    assert texts(with_head) == texts(made_by(model, prompts, guesses=False))
    assert sum(token.rejected for answer in with_head for token in answer) > 0
