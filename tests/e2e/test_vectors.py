"""Embeddings and reranking by the official client and as others ask for it: a published encoder and
a chat model.
"""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest

from tests.support.gateway import START_S, Gateway, eventually
from tests.support.minilm import TEXTS, cosines, minilm
from tests.support.streams import open_stream

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    running = Gateway(models=(f"{minilm()}=minilm", "demo"))
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def vectors(client: openai.OpenAI) -> np.ndarray:
    """As the client asks for them by itself: in base64."""
    answer = client.embeddings.create(model="minilm", input=TEXTS)
    assert [embedding.index for embedding in answer.data] == list(range(len(TEXTS)))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)
    return np.array([embedding.embedding for embedding in answer.data])


def test_vectors_are_those_of_its_authors_library(vectors: np.ndarray) -> None:
    assert cosines(vectors).min() >= 0.999
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


def test_floats_are_the_same_numbers(client: openai.OpenAI, vectors: np.ndarray) -> None:
    answer = client.embeddings.create(model="minilm", input=TEXTS[2], encoding_format="float")
    # Batches of other shapes round otherwise.
    np.testing.assert_allclose(answer.data[0].embedding, vectors[2], atol=1e-5)


def test_tokens_are_inputs_too(gateway: Gateway, vectors: np.ndarray) -> None:
    # [CLS] short [SEP]
    for tokens, number in (([101, 2460, 102], 1), ([[101, 2460, 102]] * 2, 2)):
        body = {"model": "minilm", "input": tokens, "encoding_format": "base64"}
        answer = gateway.client.post("/v1/embeddings", json=body).raise_for_status().json()
        assert answer["usage"] == {"prompt_tokens": 3 * number, "total_tokens": 3 * number}
        for item in answer["data"]:
            vector = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
            np.testing.assert_allclose(vector, vectors[2], atol=1e-5)


def test_an_encoder_writes_no_text_and_says_so(gateway: Gateway, vectors: np.ndarray) -> None:
    answer = gateway.chat("Hello", "minilm")
    assert answer.status_code == 400
    assert "'minilm' is made for vectors" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "model"
    listed = gateway.client.get("/v1/models/minilm").json()
    assert listed["abilities"] == ["embedding", "score"]
    assert listed["max_model_len"] == 256
    assert gateway.client.get("/health?deep=minilm").json()["deep"]["ok"]


def test_the_first_request_of_the_wrong_kind_gets_the_same_answer(gateway: Gateway) -> None:
    gateway.order("unload", "minilm").raise_for_status()
    assert gateway.chat("Hello", "minilm").status_code == 400


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": ["fine", "word " * 300]}, "input", "context_length_exceeded"),
        ({"input": [[1, 99_999]]}, "input", "invalid_request_error"),
        ({"input": "x", "dimensions": 100}, "dimensions", "invalid_request_error"),
        ({"input": "x", "task": "retrieval"}, "task", "invalid_request_error"),
        ({"input": "x", "prompt_name": "query"}, "prompt_name", "invalid_request_error"),
        (
            {"input": "x", "truncate_prompt_tokens": 257},
            "truncate_prompt_tokens",
            "invalid_request_error",
        ),
    ],
)
def test_missing_abilities_of_the_model_are_named(
    gateway: Gateway, fields: dict[str, object], param: str, code: str
) -> None:
    answer = gateway.client.post("/v1/embeddings", json={"model": "minilm", **fields})
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (code, param)


def test_long_texts_are_cut_if_that_is_asked_for(gateway: Gateway) -> None:
    body = {"model": "minilm", "input": "word " * 300, "truncate_prompt_tokens": 8}
    answer = gateway.client.post("/v1/embeddings", json=body).raise_for_status().json()
    assert answer["usage"]["prompt_tokens"] == 8


def test_documents_are_ordered_by_what_they_have_to_do_with_a_query(gateway: Gateway) -> None:
    documents = ["Bread rises.", {"text": "The ship leaves the harbour."}, "Two is a number."]
    body = {"model": "minilm", "query": "boats", "documents": documents}
    answer = gateway.client.post("/v1/rerank", json=body).raise_for_status().json()
    results = answer["results"]
    assert results[0]["index"] == 1
    assert results[0]["document"] == documents[1]
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3
    body |= {"top_n": 1, "return_documents": False}
    answer = gateway.client.post("/v1/rerank", json=body).raise_for_status().json()
    assert [result["index"] for result in answer["results"]] == [1]
    assert "document" not in answer["results"][0]


@pytest.mark.slow
def test_a_chat_model_makes_vectors_too_beside_its_streams(
    gateway: Gateway, client: openai.OpenAI
) -> None:
    text = gateway.say("Tell me a story.")
    stream = open_stream(gateway, "Tell me a story.")
    eventually(lambda: stream.text, START_S)
    answer = client.embeddings.create(model="demo", input=["one", "two", "one"])
    assert stream.join().text == text
    one, two, again = (np.array(embedding.embedding) for embedding in answer.data)
    assert one @ again > 0.9999 > one @ two
    assert "text" in gateway.client.get("/v1/models/demo").json()["abilities"]


@pytest.mark.slow
def test_vectors_survive_their_worker(gateway: Gateway, client: openai.OpenAI) -> None:
    pid = gateway.load("minilm")["worker"]["pid"]
    # It can't answer before it is killed.
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.embeddings.create, model="minilm", input=TEXTS)
        eventually(lambda: gateway.model("minilm")["active_requests"], START_S)
        os.kill(pid, signal.SIGKILL)
        answer = asked.result(120)
    assert cosines(np.array([embedding.embedding for embedding in answer.data])).min() >= 0.999
    assert gateway.worker_pid("minilm") != pid
    assert [event["model"] for event in gateway.events("resume")] == ["minilm"]
