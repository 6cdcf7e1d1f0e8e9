"""Batches of texts through a model, beside sequences, within a room that changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from protocol.answers import Embedded, OutputInvalid
from protocol.messages import MAX_WORKER_FRAME_BYTES, encode
from worker.engines.batched_engine import BatchedEngine
from worker.engines.room import NO_CACHES, BatchSize, CacheRoom, measure
from worker.engines.sequence import Sequence
from worker.load.loading import load_weights
from worker.vectors.backbones import Decoder, Encoder
from worker.vectors.engine import NoText, VectorEngine, WithVectors
from worker.vectors.heads import PoolHead, VectorHead
from worker.vectors.jobs import TokenizedText, VectorJob, VectorKind
from worker.vectors.recipe import Recipe

MODELS = Path(__file__).with_name("models")
TEXTS = [TokenizedText(load["tokens"]) for load in json.loads((MODELS / "texts.json").read_text())]


class Bench:
    """An engine with a small model, and what it sends."""

    def __init__(self, name: str, room: CacheRoom | None = None, **recipe: Any) -> None:
        self.model, _ = load_weights(MODELS / name)
        self.sent: list[Embedded | OutputInvalid] = []
        self.room = room or CacheRoom(NO_CACHES)
        decoder = Decoder.of(self.model) if name == "qwen3" else None
        poolings = ("lasttoken",) if decoder else ("mean",)
        head = VectorHead(Recipe(poolings, **recipe))
        self.vectors = VectorEngine(
            decoder or Encoder(self.model),
            {"embedding": head, "cosine": head},
            self.room,
            0.1,
            0,
            self.sent.append,
        )
        self.engine = WithVectors(NoText(), self.vectors, self.room)

    def run(self, kind: VectorKind = "embedding", **job: Any) -> np.ndarray:
        self.engine.add_job(VectorJob("r", kind, TEXTS, **job))
        while self.engine.active:
            self.engine.step()
        assert not self.engine.waiting
        return self.received("r")

    def received(self, request_id: str) -> np.ndarray:
        parts = [
            message
            for message in self.sent
            if isinstance(message, Embedded) and message.request_id == request_id
        ]
        assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
        data = b"".join(part.vectors for part in parts)
        return np.frombuffer(data, "<f4").reshape(-1, parts[0].dimensions)


def _expected(name: str) -> list[np.ndarray]:
    values = json.loads((MODELS / name / "expected.json").read_text())
    return [np.array(value).reshape(-1, 16) for value in values]


@pytest.fixture(scope="module")
def bert() -> np.ndarray:
    """Means of the states, of length 1."""
    means = np.stack([ndarray.mean(axis=0) for ndarray in _expected("bert")])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def test_vectors_in_the_order_of_the_texts(bert: np.ndarray) -> None:
    bench = Bench("bert")
    np.testing.assert_allclose(bench.run(), bert, atol=1e-4)
    assert sum(embedded.tokens for embedded in bench.sent) == sum(
        len(text.token_ids) for text in TEXTS
    )


def test_a_decoders_texts_go_through_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench("qwen3", normalized=False)
    monkeypatch.setattr(bench.vectors._pace, "chunk", lambda *_, **__: 4)
    last = np.stack([ndarray[-1] for ndarray in _expected("qwen3")])
    np.testing.assert_allclose(bench.run(), last, atol=2e-4)


def test_cut_vectors_have_length_1_again(bert: np.ndarray) -> None:
    cut = bert[:, :5] / np.linalg.norm(bert[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(Bench("bert", normalized=False).run(dimensions=5), cut, atol=1e-4)


def test_cosines_with_the_first_text(bert: np.ndarray) -> None:
    cosines = Bench("bert").run("cosine")
    np.testing.assert_allclose(cosines[:, 0], bert[1:] @ bert[0], atol=1e-4)


def test_many_vectors_come_in_several_frames() -> None:
    bench = Bench("bert")
    bench.engine.add_job(VectorJob("r", "embedding", [TokenizedText([2, 3])] * 20_000))
    while bench.engine.active:
        bench.engine.step()
    assert len(bench.sent) > 2
    assert all(len(encode(embedded)) <= MAX_WORKER_FRAME_BYTES for embedded in bench.sent)
    assert bench.received("r").shape == (20_000, 16)


def test_removed_jobs_are_not_computed(bert: np.ndarray) -> None:
    bench = Bench("bert")
    bench.engine.add_job(VectorJob("gone", "embedding", TEXTS))
    bench.engine.add_job(VectorJob("stays", "embedding", TEXTS))
    bench.engine.step()
    bench.engine.remove(["gone", "never was"])
    while bench.engine.active:
        bench.engine.step()
    assert {embedded.request_id for embedded in bench.sent} == {"stays"}
    np.testing.assert_allclose(bench.received("stays"), bert, atol=1e-4)
    assert bench.room.vector_bytes == 0


def test_texts_wait_for_room_and_say_what_they_need() -> None:
    bench = Bench("bert", CacheRoom(NO_CACHES, limit_bytes=1_000, working_token_bytes=100))
    engine = bench.engine
    engine.add_job(VectorJob("r", "embedding", TEXTS))
    engine.step()
    assert engine.short
    assert (engine.active, engine.waiting) == (0, 1)
    need = engine.need
    assert need.least_bytes == need.wanted_bytes > 1_000
    bench.room.limit_bytes = need.least_bytes
    engine.step()
    assert not engine.short
    assert engine.active == 1
    while engine.active:
        engine.step()
    assert bench.received("r").shape == (3, 16)


@pytest.fixture
def beside() -> Iterator[tuple[Bench, WithVectors]]:
    """Vectors beside an engine that writes, with room for four sequences."""
    bench = Bench("qwen3")
    bench.room.shape = measure(bench.model)
    bench.room.limit_bytes = bench.room.needed_bytes([BatchSize(4, 40)])
    text = BatchedEngine(bench.model, [63], 4, bench.room)
    engine = WithVectors(text, bench.vectors, bench.room)
    yield bench, engine
    engine.close()


def test_sequences_go_on_beside_vectors(beside: tuple[Bench, WithVectors]) -> None:
    bench, engine = beside
    engine.add(Sequence("s", [2, 5, 7], 12, None, ignore_eos=True))
    alone = []
    while engine.active + engine.waiting:
        alone += [token.token_id for token in engine.step()]
    engine.add(Sequence("s", [2, 5, 7], 12, None, ignore_eos=True))
    engine.add_job(VectorJob("r", "embedding", TEXTS))
    together = []
    while engine.active + engine.waiting:
        together += [token.token_id for token in engine.step()]
        assert bench.room.limit_bytes is not None
        assert engine.need.used_bytes <= bench.room.limit_bytes
    assert together == alone
    assert len(alone) == 12
    assert len(bench.received("r")) == 3


class FaultyHead:
    """A head whose vector of one text is wrong, wherever this text is in a batch."""

    def __init__(self, head: PoolHead, vector: np.ndarray, wrong: float) -> None:
        self.poolings, self.normalized = head.poolings, head.normalized
        self._head, self._vector, self._wrong = head, vector, wrong

    def __call__(self, pooled: Any) -> Any:
        vectors = np.array(self._head(pooled))
        vectors[np.abs(vectors - self._vector).sum(axis=1) < 1e-2, 3] = self._wrong
        return mx.array(vectors)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_not_sent(wrong: float) -> None:
    """Those of other jobs in the batch are."""
    bench = Bench("bert")
    longest = max(range(len(TEXTS)), key=lambda index: len(TEXTS[index].token_ids))
    vector = _expected("bert")[longest].mean(axis=0)
    bench.vectors._heads = {
        "embedding": FaultyHead(bench.vectors._heads["embedding"], vector, wrong)
    }
    others = [text for index, text in enumerate(TEXTS) if index != longest]
    bench.engine.add_job(VectorJob("faulty", "embedding", TEXTS))
    bench.engine.add_job(VectorJob("right", "embedding", others))
    while bench.engine.active:
        bench.engine.step()
    of_faulty = [message for message in bench.sent if message.request_id == "faulty"]
    assert of_faulty == [OutputInvalid(request_id="faulty", goes_on=False)]
    assert len(bench.received("right")) == len(others)
