"""Late interaction: documents are scored by the vectors of all tokens, as PyLate does."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")

from gateway.library.description import describe
from protocol.answers import RequestFailed
from protocol.requests import Embed, TextPrompt
from tests.support.minilm import minilm
from tests.support.shapes import DEMO
from tests.support.vlm_encoders import (
    DOCUMENT_PREFIX,
    QUERY_PREFIX,
    QUERY_TOKENS,
    own_model,
    write_late_layer,
    write_late_model,
)
from tests.worker.vectors.serving import CONTEXT, Served, load_folder
from worker.engines.room import NO_CACHES, CacheRoom
from worker.load.loading import read_tokenizer
from worker.system.errors import ModelError
from worker.vectors.jobs import TokenizedText, VectorJob
from worker.vectors.late_texts import LateTexts
from worker.vectors.making import make_vectors
from worker.vectors.recipe import RecipeError, TokenMarks, read_recipe

PYLATE = json.loads(Path(__file__).with_name("pylate.json").read_text("utf-8"))
QUERY = "Which ship sails?"
DOCUMENTS = (
    "A ship, far away.",
    "Bread",
    "Once there was a ship that sailed far, far away.",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_late_model(tmp_path_factory.mktemp("models") / "late")


@pytest.fixture(scope="module")
def served(folder: Path) -> Served:
    return Served(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return read_tokenizer(folder)


def _scores(folder: Path, tokenizer: Any, *, expands: bool) -> list[float]:
    """By mlx-vlm's layers, each text alone."""
    model = own_model("lfm2")
    layer = mx.load(str(folder / "1_Dense" / "model.safetensors"))["linear.weight"]

    def vectors(tokens: list[int], unseen: int = 0) -> np.ndarray:
        rows = mx.array([tokens])
        mask = mx.array([[1.0] * (len(tokens) - unseen) + [0.0] * unseen])
        # mlx-vlm's own call for single vectors hides unseen tokens from convolutions, too.
        states, _ = model._encode(rows, mask, mask_convolutions=False)
        made = np.array((states @ layer.T)[0])
        return made / np.linalg.norm(made, axis=1, keepdims=True)

    def marked(text: str, prefix: str) -> list[int]:
        first, *others = tokenizer.encode(text)
        return [first, tokenizer.convert_tokens_to_ids(prefix), *others]

    asked = marked(QUERY, QUERY_PREFIX)
    missing = QUERY_TOKENS - len(asked) if expands else 0
    assert missing >= 0
    query = vectors(asked + [tokenizer.eos_token_id] * missing, missing)
    skipped = set(tokenizer.convert_tokens_to_ids([",", "."]))
    scores = []
    for text in DOCUMENTS:
        tokens = marked(text, DOCUMENT_PREFIX)
        counted = [place for place, token in enumerate(tokens) if token not in skipped]
        scores.append(float((query @ vectors(tokens)[counted].T).max(axis=1).sum()))
    return scores


@pytest.mark.parametrize("expands", [True, False])
def test_scores_are_sums_of_the_largest_products(
    expands: bool, tmp_path: Path, tokenizer: Any
) -> None:
    folder = write_late_model(tmp_path / "late", do_query_expansion=expands)
    served = Served(folder)
    assert served.serving.abilities == ("score", "token_vectors")
    together = served.numbers(DOCUMENTS, query=QUERY)[:, 0]
    np.testing.assert_allclose(together, _scores(folder, tokenizer, expands=expands), rtol=1e-4)
    alone = [served.numbers([text], query=QUERY)[0, 0] for text in DOCUMENTS]
    np.testing.assert_allclose(together, alone, rtol=1e-5)


@pytest.mark.parametrize("case", PYLATE["cases"], ids=lambda case: str(case["settings"]))
def test_scores_are_pylates(case: dict[str, Any], tmp_path: Path) -> None:
    """Those of make_pylate.py, with an encoder of mlx-embeddings."""
    folder = tmp_path / "late"
    shutil.copytree(minilm(), folder)
    write_late_layer(folder, mx.array(np.random.RandomState(7).randn(24, 384).astype(np.float32)))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(case["settings"]))
    scores = Served(folder).numbers(PYLATE["documents"], query=PYLATE["query"])
    np.testing.assert_allclose(scores[:, 0], case["scores"], atol=2e-3)


def test_a_document_that_is_the_query_scores_each_token_fully(tmp_path: Path) -> None:
    folder = write_late_model(
        tmp_path / "late",
        query_prefix="",
        document_prefix="",
        do_query_expansion=False,
        skiplist_words=[],
    )
    served = Served(folder)
    tokens = len(served.loaded.tokenizer.encode(QUERY))
    assert served.numbers([QUERY], query=QUERY)[0, 0] == pytest.approx(tokens, abs=1e-4)


def test_several_requests_are_scored_by_their_own_queries(served: Served) -> None:
    engine = served.serving.engine
    jobs = []
    for number, query in enumerate((QUERY, "Bread")):
        embed = Embed(request_id=str(number), inputs=tuple(map(TextPrompt, DOCUMENTS)), query=query)
        job = served.serving.texts.prepare(embed, CONTEXT)
        assert isinstance(job, VectorJob)
        jobs.append(job)
    alone = [served.numbers(DOCUMENTS, query=query) for query in (QUERY, "Bread")]
    served.sent.clear()
    for job in (*jobs, dataclasses.replace(jobs[0], request_id="gone")):
        engine.add(job)
    assert engine.start_batch(None)
    engine.step(beside_decoding=False)
    # Its query is computed, and its documents wait.
    engine.remove(["gone"])
    while engine.jobs:
        assert engine.start_batch(None)
        engine.step(beside_decoding=False)
    made = {part.request_id: np.frombuffer(part.vectors, "<f4") for part in served.embedded()}
    assert made.keys() == {"0", "1"}
    for number, expected in enumerate(alone):
        np.testing.assert_allclose(made[str(number)], expected[:, 0], rtol=1e-5)


def test_computing_again_changes_no_score(served: Served) -> None:
    expected = served.numbers(DOCUMENTS, query=QUERY)
    engine = served.serving.engine
    embed = Embed(request_id="r", inputs=tuple(map(TextPrompt, DOCUMENTS)), query=QUERY)
    job = served.serving.texts.prepare(embed, CONTEXT)
    assert isinstance(job, VectorJob)
    served.sent.clear()
    engine.add(job)
    while engine.jobs:
        assert engine.start_batch(None)
        engine.recompute_all()
        assert engine.start_batch(None)
        engine.step(beside_decoding=False)
    (answer,) = served.embedded()
    np.testing.assert_allclose(np.frombuffer(answer.vectors, "<f4"), expected[:, 0], rtol=1e-5)


def _marked(tokenizer: Any, **marks: Any) -> LateTexts:
    prefixes = {"query_prefix": QUERY_PREFIX, "document_prefix": DOCUMENT_PREFIX}
    return LateTexts(tokenizer, TokenMarks(**(prefixes | marks)))


def test_queries_are_expanded_to_their_length(tokenizer: Any) -> None:
    text = TokenizedText([5, 6, 7], [0, 0, 0])
    query = _marked(tokenizer, query_tokens=7).query(text)
    prefix, filler = tokenizer.convert_tokens_to_ids(QUERY_PREFIX), tokenizer.eos_token_id
    assert query.token_ids == [5, prefix, 6, 7, filler, filler, filler]
    assert (query.types, query.unseen, query.counted) == ([0] * 7, 3, None)
    assert _marked(tokenizer, query_tokens=7, expansion_seen=True).query(text).unseen == 0
    assert len(_marked(tokenizer, query_tokens=7, expanded=False).query(text).token_ids) == 4


def test_words_of_documents_are_skipped(tokenizer: Any) -> None:
    comma = tokenizer.convert_tokens_to_ids(",")
    late = _marked(tokenizer, skipped_words=(",", "no token"))
    assert late.document(TokenizedText([5, comma, 7])).counted == [0, 1, 3]
    # A text of such words alone keeps them.
    late = _marked(tokenizer, document_prefix="", skipped_words=(",",))
    assert late.document(TokenizedText([comma])).counted is None


def test_a_missing_prefix_is_named(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no token '\[Q\] '"):
        _marked(tokenizer, query_prefix="[Q] ")
    folder = write_late_model(tmp_path / "late", document_prefix="[D] ")
    with pytest.raises(ModelError, match=r"no token '\[D\] '"):
        Served(folder)


def _refused(served: Served, document: str, **fields: Any) -> RequestFailed:
    embed = Embed(request_id="r", inputs=(TextPrompt(document),), **fields)
    failed = served.serving.texts.prepare(embed, CONTEXT)
    assert isinstance(failed, RequestFailed)
    return failed


def test_queries_and_documents_have_bounds_of_their_own(served: Served) -> None:
    assert "is 40 tokens" in _refused(served, "ship " * 60, query=QUERY).message
    too_long = _refused(served, "ship", query="ship " * 20)
    assert "is 12 tokens" in too_long.message
    assert "of the query" in too_long.message
    embed = Embed(
        request_id="r", inputs=(TextPrompt("ship " * 60),), query="ship " * 20, truncate=-1
    )
    job = served.serving.texts.prepare(embed, CONTEXT)
    assert isinstance(job, VectorJob)
    assert [len(text.token_ids) for text in job.texts] == [QUERY_TOKENS, 40]


def test_pylates_defaults(tmp_path: Path) -> None:
    folder = write_late_model(tmp_path / "late")
    (folder / "config_sentence_transformers.json").write_text("{}")
    recipe = read_recipe(folder, {}, "mean")
    assert recipe.marks == TokenMarks()
    assert (recipe.most_tokens, recipe.marks.query_tokens) == (180, 32)


def test_layers_behind_a_pooling_make_one_vector(folder: Path, tmp_path: Path) -> None:
    kinds = ("Transformer", "Pooling", "Dense")
    modules = [{"path": "1_Dense", "type": f"x.{kind}"} for kind in kinds]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Dense").mkdir()
    (tmp_path / "1_Dense" / "config.json").write_text('{"pooling_mode": "cls"}')
    assert read_recipe(tmp_path, {}, "mean").marks is None


def test_a_layer_that_adds_its_input_is_refused(tmp_path: Path) -> None:
    folder = write_late_model(tmp_path / "late")
    (folder / "1_Dense" / "config.json").write_text('{"use_residual": true}')
    with pytest.raises(ModelError, match="adds its input"):
        Served(folder)


def _late_decoder(folder: Path, **settings: Any) -> Path:
    write_late_model(folder, **settings)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((DEMO / name).read_bytes())
    width = json.loads((DEMO / "config.json").read_text())["hidden_size"]
    layer = mx.random.normal((16, width), key=mx.random.key(3))
    mx.save_safetensors(str(folder / "1_Dense" / "model.safetensors"), {"linear.weight": layer})
    return folder


def test_a_decoder_makes_vectors_of_tokens_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(_late_decoder(tmp_path / "late", attend_to_expansion_tokens=True))
    assert served.serving.abilities == ("text", "score", "token_vectors")
    whole = served.numbers(DOCUMENTS, query=QUERY)
    monkeypatch.setattr(served.serving.engine._pace, "chunk", lambda *_, **__: 4)
    np.testing.assert_allclose(served.numbers(DOCUMENTS, query=QUERY), whole, rtol=1e-3)


def test_a_decoder_cannot_hide_the_expansion(tmp_path: Path) -> None:
    folder = _late_decoder(tmp_path / "late")

    loaded = load_folder(folder)
    assert make_vectors(loaded, "demo", CacheRoom(NO_CACHES), 0.1, lambda _: None) is None


def test_it_is_described_as_a_reranker(folder: Path) -> None:
    described = describe(folder)
    assert described.problem is None
    assert described.abilities == ("rerank",)
