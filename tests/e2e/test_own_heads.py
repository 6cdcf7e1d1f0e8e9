"""A model whose files have a head for several tokens is served with that head, and without it if
guesses are off.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from mlx_lm.utils import load_tokenizer

from tests.support.gateway import Gateway
from tests.support.own_heads import WIDTH, OwnHead, write
from tests.support.shapes import DEMO

pytestmark = pytest.mark.slow

PROMPT = 20
TOKENS = WIDTH - 4


def _folder(folder: Path) -> tuple[Path, str]:
    """A model whose head is always right, and its answer to the prompt."""
    demo = json.loads((DEMO / "config.json").read_text())
    vocabulary = {name: demo[name] for name in ("vocab_size", "eos_token_id")}
    own = OwnHead("qwen3_5", tie_word_embeddings=False, **vocabulary)
    follows = own.forget_context("state")
    answer = [PROMPT]
    for _ in range(TOKENS):
        answer.append(follows[answer[-1]])
    write(folder, own.config, own.published())
    for path in DEMO.glob("*token*"):
        shutil.copy(path, folder)
    return folder, load_tokenizer(folder).decode(answer[1:])


def test_served_with_its_head_and_without(tmp_path: Path) -> None:
    folder, text = _folder(tmp_path / "model")
    options = (("with", ""), ("without", "guesses = false\n"))
    tables = [f'[models.{name}]\npath = "{folder}"\n{more}' for name, more in options]
    gateway = Gateway(models=(), config="".join(tables))
    for name, _ in options:
        body = {"model": name, "prompt": [PROMPT], "max_tokens": TOKENS, "ignore_eos": True}
        answered = gateway.client.post("/v1/completions", json=body | {"temperature": 0})
        made = answered.raise_for_status().json()
        assert made["usage"]["completion_tokens"] == TOKENS
        assert made["choices"][0]["text"] == text
    # Until the costs of guesses are known, some steps try them.
    told = gateway.model("with")["guesses"]
    assert told["accepted"] > 0
    assert told["rejected"] == 0
    assert gateway.model("without")["guesses"]["accepted"] == 0
    assert gateway.stop() == 0, gateway.log
