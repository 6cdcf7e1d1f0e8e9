"""A model is served with what guesses for it: a head in its files, or split off them, or EAGLE-3.
If guesses are off it is served without it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.utils import load_tokenizer

from tests.support.eagles import config_of, random_weights
from tests.support.gateway import Gateway
from tests.support.own_heads import WIDTH, OwnHead, write
from tests.support.shapes import DEMO

pytestmark = pytest.mark.slow

PROMPT = 20
TOKENS = WIDTH - 4


def _written(folder: Path, own: OwnHead, weights: dict[str, mx.array]) -> Path:
    write(folder, own.config, weights)
    for path in DEMO.glob("*token*"):
        shutil.copy(path, folder)
    return folder


def _eagle(folder: Path, follows: dict[int, int], vocabulary: int) -> Path:
    """EAGLE-3 for a model whose states are one-hot tokens. It is always right."""
    config = config_of(WIDTH, vocabulary, draft_vocab_size=WIDTH)
    weights = {name: mx.zeros_like(item) for name, item in random_weights(config).items()}
    del weights["embed_tokens.weight"]
    turned = mx.eye(WIDTH)[mx.array([follows[token] for token in range(WIDTH)])].T
    # No chain: its own states don't become those of the next token.
    weights["fc.weight"] = mx.concatenate([turned / 3] * 3, axis=1)
    weights["norm.weight"] = mx.ones(WIDTH)
    weights["lm_head.weight"] = turned
    return write(folder, config, weights)


def test_served_with_its_head_and_without(tmp_path: Path) -> None:
    demo = json.loads((DEMO / "config.json").read_text())
    vocabulary = {name: demo[name] for name in ("vocab_size", "eos_token_id")}
    own = OwnHead("qwen3_5", tie_word_embeddings=False, **vocabulary)
    follows = own.forget_context("state")
    answer = [PROMPT]
    for _ in range(TOKENS):
        answer.append(follows[answer[-1]])
    folder = _written(tmp_path / "model", own, own.published())
    text = load_tokenizer(folder).decode(answer[1:])
    weights = own.converted()
    heads = {name.partition("mtp.")[2]: weights.pop(name) for name in [*weights] if "mtp." in name}
    split = {"model_type": "qwen3_5_mtp", "text_config": own.config}
    head = write(tmp_path / "bare-mtp", split, heads)
    bare = _written(tmp_path / "bare", own, weights)
    other = _written(tmp_path / "other", own, weights)
    eagle = _eagle(tmp_path / "eagle", follows, demo["vocab_size"])
    options = {
        "with": (folder, ""),
        "without": (folder, "guesses = false\n"),
        "beside": (bare, ""),
        "named": (other, f'draft_model = "{head}"\n'),
        "eagle": (other, f'draft_model = "{eagle}"\ndraft_tokens = 1\n'),
    }
    tables = [f'[models.{name}]\npath = "{path}"\n{more}' for name, (path, more) in options.items()]
    gateway = Gateway(models=(), config="".join(tables))
    for name in options:
        body = {"model": name, "prompt": [PROMPT], "max_tokens": TOKENS, "ignore_eos": True}
        answered = gateway.client.post("/v1/completions", json=body | {"temperature": 0})
        made = answered.raise_for_status().json()
        assert made["usage"]["completion_tokens"] == TOKENS
        assert made["choices"][0]["text"] == text
    # Until the costs of guesses are known, some steps try them.
    for name in options.keys() - {"without"}:
        told = gateway.model(name)["guesses"]
        assert told["accepted"] > 0, name
        assert told["rejected"] == 0, name
    assert gateway.model("without")["guesses"]["accepted"] == 0
    assert gateway.stop() == 0, gateway.log
