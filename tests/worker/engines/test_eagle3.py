"""EAGLE-3 guesses in batches by the states of its model's layers, and the text is the same as
without it.
"""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import pytest

from tests.support.drafted_answers import made_with, texts
from tests.support.eagles import (
    CIRCLE,
    FIRST,
    VOCABULARY,
    Weights,
    always_right,
    as_speculators,
    circle_model,
    config_of,
    random_weights,
)
from tests.support.own_heads import OwnHead, write
from tests.support.vlm_architectures import TINY_VLM
from tests.support.vlm_folders import write_vlm
from worker.engines.decoding import Caches
from worker.engines.row_computer import make_draft
from worker.engines.sequence import Token
from worker.load.loading import load_text, load_weights
from worker.mlx_lm.caches import make_caches
from worker.mlx_lm.eagle3 import Eagle3
from worker.mlx_lm.layer_states import LayerStates
from worker.system.errors import ModelError

TOKENS = 40
Drafter = tuple[dict[str, Any], Weights]


def made_by(
    model: Any, drafter: Drafter, prompts: list[list[int]], *, guesses: bool = True
) -> list[list[Token]]:
    draft = make_draft(model, Eagle3(*drafter), 3)
    return made_with(model, draft, prompts, TOKENS, guesses=guesses)


def in_circle(folder: Path, drafter: Drafter, rows: int) -> list[list[Token]]:
    """The answers of the model whose tokens make a circle, of which all are right."""
    config, weights, follows = circle_model()
    model, _ = load_weights(write(folder, config, weights))
    prompts = [[FIRST + index, FIRST + 2 * index + 1] for index in range(rows)]
    answers = made_by(model, drafter, prompts)
    for prompt, answer in zip(prompts, answers, strict=True):
        token_ids = [prompt[-1], *(token.token_id for token in answer)]
        assert all(follows[one] == other for one, other in pairwise(token_ids))
    return answers


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("form", ["authors'", "speculators"])
@pytest.mark.parametrize("by", ["token", "state"])
def test_a_drafter_that_is_always_right(
    by: Literal["token", "state"], form: str, rows: int, tmp_path: Path
) -> None:
    drafter = always_right(circle_model()[2], by)
    if form == "speculators":
        drafter = as_speculators(*drafter, [2, 4, 5])
    for answer in in_circle(tmp_path, drafter, rows):
        assert sum(token.rejected for token in answer) == 0
        # The drafter begins with the second token. Then a step makes four tokens.
        steps = sum(not token.guessed for token in answer)
        assert steps == 1 + -(-(len(answer) - 1) // 4)


def wrong_drafters() -> dict[str, Drafter]:
    """Drafters as the one that is always right, whose states are not those that they get."""
    follows = circle_model()[2]
    config, weights = always_right(follows, "state")

    def with_layers(**named: Any) -> Drafter:
        return {**config, **named}, weights

    ids = "eagle_aux_hidden_state_layer_ids"
    return {
        "states after a layer more": with_layers(**{ids: [3, 5, 6]}),
        "states after a layer less": with_layers(**{ids: [1, 3, 4]}),
        "states in another order": with_layers(**{ids: [2, 5, 4]}),
        "one layer more": with_layers(**{ids: [2, 4, 6]}),
        "states of the token before": always_right(follows, "state", late=1),
        # The token itself: a whole circle and one less.
        "states of the token behind": always_right(follows, "state", late=CIRCLE - 1),
    }


@pytest.mark.parametrize("what", wrong_drafters())
def test_a_drafter_with_other_states_is_never_right(what: str, tmp_path: Path) -> None:
    """So the drafter that is always right has the right states of the right tokens."""
    (answer,) = in_circle(tmp_path, wrong_drafters()[what], 1)
    assert sum(token.rejected for token in answer) > 0
    assert not any(token.guessed for token in answer)


def test_layers_that_count_by_themselves(tmp_path: Path) -> None:
    config, weights = always_right(circle_model()[2], "state")
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    (answer,) = in_circle(tmp_path, (config, weights), 1)
    assert sum(token.rejected for token in answer) == 0


@pytest.mark.parametrize("kv_bits", [None, 8])
@pytest.mark.parametrize("kind", ["qwen3_5", "glm4_moe"])
def test_the_text_is_the_same(kind: str, kv_bits: int | None, tmp_path: Path) -> None:
    if kv_bits is not None and kind == "qwen3_5":
        pytest.skip("Its recurrent states can't be quantized.")
    own = OwnHead(kind, head_dim=64)
    model, _ = load_weights(write(tmp_path, own.config, own.converted()))
    model = Caches(model, kv_bits).model
    config = config_of(
        32, VOCABULARY, target_hidden_size=64, draft_vocab_size=90, norm_before_residual=True
    )
    config["eagle_aux_hidden_state_layer_ids"] = [1, 4, 2]
    chance = random.Random(1)
    prompts = [
        [chance.randrange(5, VOCABULARY) for _ in range(count)] for count in (3, 40, 17, 1, 29)
    ]
    drafter = config, random_weights(config)
    drafted = made_by(model, drafter, prompts)
    assert texts(drafted) == texts(made_by(model, drafter, prompts, guesses=False))
    # A random drafter guesses, though hardly ever right.
    assert sum(token.rejected for answer in drafted for token in answer) > TOKENS


def beside_language_part(folder: Path, kind: str) -> tuple[Any, Drafter]:
    """A model that mlx-vlm computes, and a random drafter for it."""
    pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")
    model, _, _ = load_text(write_vlm(folder, {**TINY_VLM[kind], "model_type": kind}))
    logits, states = LayerStates(model, [1])(mx.array([[0, 0]]), make_caches(model))
    width, vocabulary = states.shape[-1], logits.shape[-1]
    config = config_of(32, vocabulary, target_hidden_size=width, draft_vocab_size=90)
    config["eagle_aux_hidden_state_layer_ids"] = [1, len(model.layers), 1]
    return model, (config, random_weights(config))


def test_the_text_of_a_model_that_mlx_vlm_computes_is_the_same(tmp_path: Path) -> None:
    model, drafter = beside_language_part(tmp_path / "model", "mistral_large3")
    prompts = [[5, 7, 9], list(range(5, 30)), [11]]
    drafted = made_by(model, drafter, prompts)
    assert texts(drafted) == texts(made_by(model, drafter, prompts, guesses=False))
    assert sum(token.rejected for answer in drafted for token in answer) > TOKENS


def test_layers_with_several_states_a_token_are_refused(tmp_path: Path) -> None:
    model, drafter = beside_language_part(tmp_path / "model", "xing4_0")
    with pytest.raises(ModelError, match="states of another shape"):
        make_draft(model, Eagle3(*drafter), 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 400, "draft_vocab_size": 400}, "it is for 400 tokens, and the model has"),
        ({"target_hidden_size": 32}, "states of another shape"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4, 9]}, "layers 2, 4, 9, and the model has 8"),
    ],
)
def test_a_drafter_of_another_model(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    model, _ = load_weights(write(tmp_path, *circle_model()[:2]))
    config = config_of(64, VOCABULARY, **options)
    with pytest.raises(
        ModelError, match=f"draft_model: EAGLE-3 doesn't fit the model: .*{message}"
    ):
        make_draft(model, Eagle3(config, random_weights(config)), 3)


def test_a_drafter_without_an_embedding_of_its_width(tmp_path: Path) -> None:
    model, _ = load_weights(write(tmp_path, *circle_model()[:2]))
    config = config_of(32, VOCABULARY, target_hidden_size=64)
    weights = random_weights(config)
    del weights["embed_tokens.weight"]
    with pytest.raises(ModelError, match="no embedding, and the model's doesn't fit"):
        make_draft(model, Eagle3(config, weights), 3)


def test_tokens_that_the_model_does_not_have(tmp_path: Path) -> None:
    model, _ = load_weights(write(tmp_path, *circle_model()[:2]))
    config, weights = always_right(circle_model()[2], "token")
    with pytest.raises(ModelError, match="d2t names tokens that the model doesn't have"):
        make_draft(model, Eagle3(config, weights | {"d2t": weights["d2t"] + 200}), 3)
