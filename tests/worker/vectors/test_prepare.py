"""Requests for vectors to tokens, with a published encoder's tokenizer and a chat model's."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from protocol.answers import RequestFailed
from protocol.message_base import pack
from protocol.requests import Embed, TextPrompt, TokenPrompt
from tests.support.minilm import minilm
from tests.support.shapes import DEMO
from worker.engines.room import Context
from worker.load.loading import read_tokenizer
from worker.vectors.heads import VectorHead
from worker.vectors.jobs import VectorJob
from worker.vectors.making import VectorTokenizer
from worker.vectors.recipe import Recipe, RecipeError, read_recipe

CONTEXT = Context(40, " Memory has no more.")
PROMPTS = {"query": "query: ", "passage": "passage: ", "topic": "topic: "}
RECIPE = Recipe(("mean",), prompts=PROMPTS, dimensions=(8, 16))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return read_tokenizer(minilm())


def _texts(tokenizer: Any, **recipe: Any) -> VectorTokenizer:
    return VectorTokenizer(
        tokenizer, 30_522, dataclasses.replace(RECIPE, **recipe), "cosine", pairs=False
    )


def _embed(*inputs: str | list[int], **fields: Any) -> Embed:
    prompts = [TextPrompt(e) if isinstance(e, str) else TokenPrompt(pack(e)) for e in inputs]
    return Embed(request_id="r", inputs=tuple(prompts), **fields)


def _job(texts: VectorTokenizer, embed: Embed) -> VectorJob:
    job = texts.prepare(embed, CONTEXT)
    assert isinstance(job, VectorJob), job
    return job


def _refused(texts: VectorTokenizer, embed: Embed) -> RequestFailed:
    failed = texts.prepare(embed, CONTEXT)
    assert isinstance(failed, RequestFailed)
    return failed


def _words(tokenizer: Any, job: VectorJob) -> list[str]:
    return [tokenizer.decode(text.token_ids) for text in job.texts]


def test_texts_and_tokens_keep_their_order(tokenizer: Any) -> None:
    job = _job(_texts(tokenizer), _embed("short", [101, 102], "ships", priority=3))
    assert _words(tokenizer, job) == ["[CLS] short [SEP]", "[CLS] [SEP]", "[CLS] ships [SEP]"]
    assert (job.request_id, job.kind, job.priority, job.dimensions) == ("r", "embedding", 3, None)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "x"),
        ({"prompt_name": "topic"}, "topic : x"),
        ({"role": "query"}, "query : x"),
        ({"role": "document"}, "passage : x"),
        ({"role": "document", "prompt_name": "query"}, "query : x"),
    ],
)
def test_prompts_of_the_files(tokenizer: Any, fields: dict[str, Any], text: str) -> None:
    job = _job(_texts(tokenizer), _embed("x", **fields))
    assert _words(tokenizer, job) == [f"[CLS] {text} [SEP]"]


def test_the_default_prompt_is_for_texts_without_another(tokenizer: Any) -> None:
    texts = _texts(tokenizer, default_prompt="topic")
    assert _words(tokenizer, _job(texts, _embed("x"))) == ["[CLS] topic : x [SEP]"]
    assert _words(tokenizer, _job(texts, _embed("x", role="query"))) == ["[CLS] query : x [SEP]"]


def test_prompts_that_are_not_pooled(tokenizer: Any) -> None:
    [text] = _job(_texts(tokenizer, with_prompt=False), _embed("x", prompt_name="topic")).texts
    # [CLS] topic :
    assert text.skipped == 3
    [text] = _job(_texts(tokenizer, with_prompt=False), _embed("x")).texts
    assert text.skipped == 0


def test_a_query_comes_before_its_documents(tokenizer: Any) -> None:
    job = _job(_texts(tokenizer), _embed("a", "b", query="q"))
    assert job.kind == "cosine"
    assert _words(tokenizer, job) == [
        "[CLS] query : q [SEP]",
        "[CLS] passage : a [SEP]",
        "[CLS] passage : b [SEP]",
    ]


def test_pairs_of_texts_have_types(tokenizer: Any) -> None:
    texts = VectorTokenizer(tokenizer, 30_522, RECIPE, "score", pairs=True)
    [text] = _job(texts, _embed("b", query="a a")).texts
    assert tokenizer.decode(text.token_ids) == "[CLS] a a [SEP] b [SEP]"
    assert text.types == [0, 0, 0, 0, 1, 1]


def test_an_empty_text_has_a_token_with_every_tokenizer(tokenizer: Any) -> None:
    assert _words(tokenizer, _job(_texts(tokenizer), _embed("", "x")))[0] == "[CLS] [SEP]"
    bare = read_tokenizer(DEMO)
    texts = VectorTokenizer(bare, 1 << 20, Recipe(("lasttoken",)), "cosine", pairs=False)
    empty, text = _job(texts, _embed("", "x")).texts
    assert (empty.token_ids, empty.types) == ([bare.eos_token_id], None)
    assert text.token_ids == bare.encode("x")


def test_a_decoder_is_asked_for_yes_or_no() -> None:
    tokenizer = read_tokenizer(DEMO)
    texts = VectorTokenizer(tokenizer, 1 << 20, RECIPE, "score", pairs=False)
    job = texts.prepare(_embed("Bread.", query="What floats?"), Context(2000))
    assert isinstance(job, VectorJob)
    question = tokenizer.decode(job.texts[0].token_ids)
    assert "<Query>: What floats?\n<Document>: Bread.<|im_end|>" in question
    assert question.endswith("</think>\n\n")


@pytest.mark.parametrize(
    ("embed", "code", "field", "words"),
    [
        (_embed("x", "w " * 50), "context_length_exceeded", "inputs", "at 1 has 52"),
        (_embed("w" * 6000), "context_length_exceeded", "inputs", "at least 46"),
        (_embed("x", [1] * 41), "context_length_exceeded", "inputs", "at 1 has 41"),
        (_embed([30_522]), "invalid_request_error", "inputs", "knows 0 to 30521"),
        (_embed("x", prompt_name="no"), "invalid_request_error", "prompt_name", "passage, query"),
        (_embed("x", truncate=41), "invalid_request_error", "truncate", "more than the 40"),
        (_embed("x", dimensions=9), "invalid_request_error", "dimensions", "allows 8, 16"),
        (_embed([1], query="q"), None, None, ""),
    ],
)
def test_impossible_requests_are_explained(
    tokenizer: Any, embed: Embed, code: str | None, field: str | None, words: str
) -> None:
    texts = _texts(tokenizer)
    if code is None:
        assert _job(texts, embed).kind == "cosine"
        return
    failed = _refused(texts, embed)
    assert (failed.code, failed.field) == (code, field)
    assert words in failed.message


def test_only_texts_can_be_scored_in_pairs(tokenizer: Any) -> None:
    texts = VectorTokenizer(tokenizer, 30_522, RECIPE, "score", pairs=True)
    assert "Only texts" in _refused(texts, _embed([1], query="q")).message


def test_the_longest_text_is_named_by_files_too(tokenizer: Any) -> None:
    failed = _refused(_texts(tokenizer, most_tokens=4), _embed("a b c"))
    assert "maximum context length is 4 tokens" in failed.message


@pytest.mark.parametrize(("truncate", "tokens"), [(-1, 40), (5, 5)])
def test_texts_are_cut_and_end_as_others_do(tokenizer: Any, truncate: int, tokens: int) -> None:
    job = _job(_texts(tokenizer), _embed("w " * 50, [1] * 50, truncate=truncate))
    assert [len(text.token_ids) for text in job.texts] == [tokens, tokens]
    assert job.texts[0].token_ids[-1] == 102


def test_dimensions_that_files_allow(tokenizer: Any) -> None:
    assert _job(_texts(tokenizer), _embed("x", dimensions=8)).dimensions == 8
    assert _job(_texts(tokenizer, dimensions=True), _embed("x", dimensions=9)).dimensions == 9


def _write(folder: Path, files: dict[str, Any]) -> Path:
    for name, value in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    return folder


MODULES = [
    {"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def test_recipes_of_old_files_and_new_ones(tmp_path: Path) -> None:
    assert read_recipe(minilm(), {}, "cls") == Recipe(("mean",), most_tokens=256)
    files = {
        "modules.json": [*MODULES, {"path": "2_Dense", "type": "x.Dense"}],
        "1_Pooling/config.json": {"pooling_mode": ["cls", "max"], "include_prompt": False},
        "config_sentence_transformers.json": {
            "prompts": {"query": "q: "},
            "default_prompt_name": "query",
        },
    }
    recipe = read_recipe(_write(tmp_path, files), {"matryoshka_dimensions": [4]}, "mean")
    assert recipe == Recipe(
        ("cls", "max"),
        normalized=False,
        dense=(tmp_path / "2_Dense",),
        with_prompt=False,
        prompts={"query": "q: "},
        default_prompt="query",
        dimensions=(4,),
    )


def test_files_without_a_word(tmp_path: Path) -> None:
    assert read_recipe(tmp_path, {"is_matryoshka": True}, "lasttoken") == Recipe(
        ("lasttoken",), dimensions=True
    )


@pytest.mark.parametrize(
    "files",
    [
        {"modules.json": [*MODULES, {"path": "", "type": "x.Router"}]},
        {"modules.json": MODULES, "1_Pooling/config.json": {"pooling_mode": "attention"}},
        {"modules.json": MODULES, "1_Pooling/config.json": {}},
        {"modules.json": [{}]},
        {"modules.json": 7},
    ],
)
def test_unsupported_files_are_explained(tmp_path: Path, files: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        read_recipe(_write(tmp_path, files), {}, "mean")


def test_layer_without_a_weight_is_explained(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"linear.bias": mx.zeros(4)})
    with pytest.raises(RecipeError, match=r"has no linear\.weight"):
        VectorHead(Recipe(("mean",), dense=(tmp_path,)))
