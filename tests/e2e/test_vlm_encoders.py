"""Vector models that mlx-vlm computes, over HTTP: one vector a text, and one a token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")

from tests.support.gateway import Gateway
from tests.support.vlm_encoders import write_late_model, write_vlm_encoder

pytestmark = pytest.mark.timeout(300)
DOCUMENTS = ["A ship, far away.", "Bread", "Once there was a ship."]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("models")
    write_vlm_encoder(folder / "encoder", "embedding_gemma2")
    write_late_model(folder / "late")
    refused = write_vlm_encoder(tmp_path_factory.mktemp("refused") / "pages", "llama")
    (refused / "config.json").write_text('{"model_type": "colqwen2_5"}')
    config = f'[memory]\nbudget = "6GB"\n[models]\ndiscover = ["{folder}"]\n'
    running = Gateway(config=config, models=(f"{refused}=pages",))
    yield running
    assert running.stop() == 0, running.log


def test_an_encoder_makes_vectors_and_ranks_by_them(gateway: Gateway) -> None:
    body = {"model": "encoder", "input": DOCUMENTS}
    answer = gateway.client.post("/v1/embeddings", json=body).raise_for_status().json()
    vectors = np.array([item["embedding"] for item in answer["data"]])
    assert vectors.shape == (3, 24)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    body = {"model": "encoder", "query": DOCUMENTS[0], "documents": DOCUMENTS}
    ranked = gateway.client.post("/v1/rerank", json=body).raise_for_status().json()["results"]
    assert ranked[0]["index"] == 0
    cosines = {result["index"]: result["relevance_score"] for result in ranked}
    for index, vector in enumerate(vectors):
        assert cosines[index] == pytest.approx(float(vector @ vectors[0]), abs=1e-4)
    assert gateway.client.get("/v1/models/encoder").json()["abilities"] == ["embedding", "score"]
    assert gateway.chat("Hello", "encoder").status_code == 400


def test_late_interaction_ranks_and_makes_no_embeddings(gateway: Gateway) -> None:
    body = {"model": "late", "query": "A ship sails", "documents": DOCUMENTS}
    answer = gateway.client.post("/v1/rerank", json=body).raise_for_status().json()
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    # No score is higher than the number of the query's tokens.
    assert len(scores) == 3
    assert max(scores) <= 12
    assert answer["usage"]["prompt_tokens"] > 12
    refused = gateway.client.post("/v1/embeddings", json={"model": "late", "input": "A ship"})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request_error", "model")
    assert "'late' makes one vector of each token" in error["message"]
    assert "/v1/rerank takes it" in error["message"]
    listed = gateway.client.get("/v1/models/late").json()
    assert (listed["abilities"], listed["max_model_len"]) == (["score", "token_vectors"], 40)
    assert gateway.client.get("/health?deep=late").json()["deep"]["ok"]


def test_a_model_of_pages_is_refused_with_a_reason(gateway: Gateway) -> None:
    body = {"model": "pages", "input": "A ship"}
    answer = gateway.client.post("/v1/embeddings", json=body)
    assert answer.status_code >= 400
    assert "pictures of pages" in answer.text
