"""Small models of each family make what transformers makes of them (make_references.py)."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map

from protocol.answers import Embedded
from worker.engines.room import NO_CACHES, CacheRoom
from worker.load.loading import load_weights
from worker.mlx_embeddings import scores
from worker.vectors.backbones import Decoder, Encoder, PaddedTexts
from worker.vectors.engine import VectorEngine
from worker.vectors.heads import ClassHead
from worker.vectors.jobs import TokenizedText, VectorJob

MODELS = Path(__file__).with_name("models")
_TEXTS = json.loads((MODELS / "texts.json").read_text())
TOKENS = [text["tokens"] for text in _TEXTS]
TYPES = [text["types"] for text in _TEXTS]
ENCODERS = (
    "bert",
    "modernbert",
    "gemma3",
    "llama_bidirec",
    "ministral3",
    "embedding_gemma2",
    "lfm2",
)


def _states(name: str, dtype: mx.Dtype = mx.float32, expanded: int = 0) -> list[np.ndarray]:
    """Of the texts, computed together, and of so many tokens more of each that no token sees."""
    model, _ = load_weights(MODELS / name)
    model.update(tree_map(lambda item: item.astype(dtype), model.parameters()))
    backbone = Decoder.of(model) if name == "qwen3" else Encoder(model)
    assert backbone is not None
    texts = [token + [4] * expanded for token in TOKENS]
    lengths = [len(text) for text in texts]
    rows = mx.array([text + [0] * (max(lengths) - len(text)) for text in texts])
    unseen = [expanded] * len(texts) if expanded else None
    states = backbone.states(PaddedTexts(rows, None, lengths, unseen), backbone.make_caches())
    return [
        np.array(row[:length].astype(mx.float32))
        for row, length in zip(states, lengths, strict=True)
    ]


def _expected(name: str, file: str = "expected.json") -> list[np.ndarray]:
    values = json.loads((MODELS / name / file).read_text())
    assert values
    return [np.array(value, np.float32) for value in values]


@pytest.mark.parametrize("name", [*ENCODERS, "qwen3"])
def test_states(name: str) -> None:
    for states, expected in zip(_states(name), _expected(name), strict=True):
        np.testing.assert_allclose(states.flatten(), expected, atol=2e-4)


@pytest.mark.parametrize("name", ["bert", "lfm2"])
def test_states_of_expanded_queries(name: str) -> None:
    made = _states(name, expanded=4)
    for states, expected in zip(made, _expected(name, "expanded.json"), strict=True):
        np.testing.assert_allclose(states.flatten(), expected, atol=2e-4)


@pytest.mark.parametrize("name", ENCODERS)
def test_states_in_half_precision(name: str) -> None:
    """Padding may be no number there, and must not reach the texts beside it."""
    for states, expected in zip(_states(name, mx.float16), _expected(name), strict=True):
        states = states.flatten()
        cosine = states @ expected / np.linalg.norm(states) / np.linalg.norm(expected)
        assert cosine > 0.999


@pytest.mark.parametrize("name", ["bert_ranker", "roberta_ranker", "modernbert_ranker"])
def test_scores(name: str) -> None:
    model, config = load_weights(MODELS / name)
    assert scores(config)
    head = ClassHead(model, config)
    sent: list[Embedded] = []
    room = CacheRoom(NO_CACHES)
    engine = VectorEngine(Encoder(model), {"score": head}, room, 0.1, 1, sent.append)
    types = TYPES if name == "bert_ranker" else [None, None, None]
    texts = [TokenizedText(ids, types=kind) for ids, kind in zip(TOKENS, types, strict=True)]
    engine.add(VectorJob("1", "score", texts))
    while engine.jobs:
        assert engine.start_batch(None)
        engine.step(beside_decoding=False)
    made = np.frombuffer(sent[0].vectors, np.float32)
    logits = np.concatenate(_expected(name))
    np.testing.assert_allclose(made, 1 / (1 + np.exp(-logits)), atol=2e-4)
    assert sent[0].tokens == sum(map(len, TOKENS))
