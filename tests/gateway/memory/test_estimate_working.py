"""What computing takes, by what MLX computes on: no MLX here, and no model."""

from __future__ import annotations

import dataclasses
import importlib
import json
import shutil
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import pytest

from gateway.memory.caches import language_of
from gateway.memory.defaults import DEFAULTS
from gateway.memory.estimate import Estimate, EstimateTerms, estimate
from gateway.memory.fitting import PROCESS_BYTES
from gateway.memory.working_space import working_bytes
from gateway.system.memory import BackEnd, back_end
from protocol.encoders import encoder_of
from tests.support.minilm import minilm
from worker.load.loading import load_weights
from worker.mlx_embeddings import classes_of
from worker.vectors.backbones import Encoder, PaddedTexts

TOKENS: Final = 32_000
HALF: Final = 2
SINGLE: Final = 4
_SIZES: Final = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
}
GEMMA: Final = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "sliding_window": 1024,
    },
}
LATENT: Final = {
    **_SIZES,
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}


def _per_token(config: dict[str, Any], element_bytes: int, system: BackEnd) -> int:
    """What each token that a chunk sees takes more, once the chunk is as long as it gets."""
    text = language_of(config)
    more = working_bytes(text, element_bytes, 2 * TOKENS, system) - working_bytes(
        text, element_bytes, TOKENS, system
    )
    return more // TOKENS


def _heads_of(size: int) -> dict[str, Any]:
    return {**_SIZES, "head_dim": size}


@pytest.mark.parametrize(
    ("system", "size", "element_bytes", "copies"),
    [
        (BackEnd.METAL, 64, HALF, 0),
        (BackEnd.METAL, 80, HALF, 0),
        (BackEnd.METAL, 128, HALF, 0),
        (BackEnd.METAL, 128, SINGLE, 0),
        (BackEnd.METAL, 96, HALF, 1),
        (BackEnd.METAL, 112, HALF, 1),
        (BackEnd.METAL, 192, HALF, 1),
        (BackEnd.METAL, 256, HALF, 1),
        (BackEnd.CUDA, 64, HALF, 1),
        (BackEnd.CUDA, 112, HALF, 1),
        (BackEnd.CUDA, 128, HALF, 1),
        (BackEnd.CUDA, 128, SINGLE, 1),
        (BackEnd.CUDA, 100, HALF, 1),
        (BackEnd.CUDA, 192, HALF, 1),
        (BackEnd.CUDA, 256, HALF, 1),
        (BackEnd.CPU, 64, HALF, 1),
        (BackEnd.CPU, 128, SINGLE, 1),
        (BackEnd.CPU, 256, HALF, 1),
    ],
)
def test_scores_take_room_where_no_kernel_keeps_them(
    system: BackEnd, size: int, element_bytes: int, copies: int
) -> None:
    chunk = 256 if system is BackEnd.CPU else 2048
    found = _per_token(_heads_of(size), element_bytes, system)
    assert found == copies * 16 * chunk * element_bytes


def test_keys_and_values_of_different_sizes_have_no_kernel_on_metal() -> None:
    config = {**_heads_of(128), "v_head_dim": 64}
    assert _per_token(config, HALF, BackEnd.METAL) == 16 * 2048 * HALF


@pytest.mark.parametrize(
    ("system", "size", "copies"),
    [(BackEnd.METAL, 64, 0), (BackEnd.METAL, 32, 3), (BackEnd.CUDA, 64, 3), (BackEnd.CPU, 64, 3)],
)
def test_sinks(system: BackEnd, size: int, copies: int) -> None:
    config = {**_heads_of(size), "model_type": "gpt_oss"}
    chunk = 256 if system is BackEnd.CPU else 2048
    assert _per_token(config, HALF, system) == copies * 16 * chunk * HALF


@pytest.mark.parametrize(
    ("system", "copies"), [(BackEnd.METAL, 1), (BackEnd.CUDA, 2), (BackEnd.CPU, 2)]
)
def test_a_latent_brings_scores_of_positions_and_its_keys_and_values(
    system: BackEnd, copies: int
) -> None:
    chunk = 256 if system is BackEnd.CPU else 2048
    keys_and_values = 16 * (128 + 128) * HALF
    assert _per_token(LATENT, HALF, system) == copies * 16 * chunk * HALF + keys_and_values


def test_heads_that_a_latent_was_spread_over_again() -> None:
    """Their keys are of 192, so Metal writes scores out; no mask comes of positions."""
    config = {**LATENT, "model_type": "deepseek_v2"}
    assert _per_token(config, HALF, BackEnd.METAL) == 16 * 2048 * HALF


def test_gemma_3_12b_takes_2_gb_for_scores_of_a_layer() -> None:
    """A chunk of 2,048 at 32,000 tokens: 2.1 GB of scores, and windows that grow by the chunk."""
    text = language_of(GEMMA)
    windows = 40 * 2048 * 2 * 8 * 256 * HALF
    activations = 2048 * (4 * 3840 + 3 * 15360) * HALF
    expected = 2_097_152_000 + windows + activations
    assert working_bytes(text, HALF, TOKENS, BackEnd.METAL) == pytest.approx(expected, rel=0.01)


def test_the_tokens_of_a_chunk_bound_it() -> None:
    """Over all rows: a step takes no more with many of them."""
    text = _heads_of(256)
    chunk = 16 * 2048 * TOKENS * HALF
    assert working_bytes(text, HALF, TOKENS, BackEnd.METAL) < 1.1 * chunk
    short = working_bytes(text, HALF, 1000, BackEnd.METAL)
    assert short < 16 * 1000 * 1000 * HALF + 1000 * (4 * 2048 + 3 * 4096) * HALF + 5_000_000


def test_experts_compute_side_by_side() -> None:
    one = {**_heads_of(64), "num_local_experts": 8, "num_experts_per_tok": 1}
    four = {**one, "num_experts_per_tok": 4}
    more = working_bytes(four, HALF, TOKENS, BackEnd.METAL) - working_bytes(
        one, HALF, TOKENS, BackEnd.METAL
    )
    assert more == 2048 * 3 * 3 * 4096 * HALF


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_are_those_of_mlx_lm(kind: str) -> None:
    module = importlib.import_module(f"mlx_lm.models.{kind}")
    defaults = {
        field.name: field.default
        for name in ("ModelArgs", "TextArgs", "TextModelArgs")
        if hasattr(module, name)
        for field in dataclasses.fields(getattr(module, name))
    }
    assert {name: defaults[name] for name in DEFAULTS[kind]} == DEFAULTS[kind]


def test_default_sizes_fill_missing_keys() -> None:
    text = language_of(GEMMA)
    assert (text["head_dim"], text["sliding_window_pattern"]) == (256, 6)
    nested: dict[str, Any] = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}
    assert language_of(nested)["num_attention_heads"] == 8
    assert language_of({"model_type": "gemma3_text"})["num_attention_heads"] == 4
    assert language_of({"model_type": "gpt_oss", "head_dim": None})["head_dim"] == 64


def test_a_process_by_what_it_computes_on() -> None:
    assert set(PROCESS_BYTES) == set(BackEnd)
    assert PROCESS_BYTES[BackEnd.CUDA] >= 900_000_000
    assert back_end() in PROCESS_BYTES


SMALL = Path(__file__).parents[2] / "worker" / "vectors" / "models"


def _estimate(folder: Path, system: BackEnd = BackEnd.CPU) -> Estimate:
    return estimate(folder, EstimateTerms(32_768, 2048, 0, None, system))


@pytest.mark.parametrize("name", ["bert", "bert_ranker", "roberta_ranker", "modernbert", "gemma3"])
def test_encoders_keep_nothing_of_a_text(name: str) -> None:
    found = _estimate(SMALL / name)
    assert found.context_tokens == 48
    assert found.token_bytes == 0
    assert found.limit_bytes(8, 48) == found.limit_bytes(1, 48)


@pytest.mark.parametrize("tokens", [16, 256])
def test_a_batch_takes_no_more_than_is_estimated(tokens: int) -> None:
    found = _estimate(minilm())
    config = json.loads((minilm() / "config.json").read_text())
    # One layer is computed after the other.
    kind, arguments = classes_of({**config, "num_hidden_layers": 2})
    model = kind(arguments.from_dict({**config, "num_hidden_layers": 2}))
    mx.eval(model.parameters())
    rows = max(1, 256 // tokens)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    texts = PaddedTexts(mx.ones((rows, tokens), mx.int32), None, [tokens] * rows)
    mx.eval(Encoder(model).states(texts, None))
    taken = mx.get_peak_memory() - before
    assert taken <= found.working_bytes + found.working_token_bytes * tokens


@pytest.mark.parametrize("name", ["llama", "lfm2", "ministral3", "embedding_gemma2"])
def test_a_batch_of_mlx_vlms_takes_no_more_than_is_estimated(name: str, tmp_path: Path) -> None:
    pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")
    from tests.support.vlm_encoders import write_vlm_encoder

    folder = write_vlm_encoder(tmp_path / name, name)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 1024}')
    config = json.loads((folder / "config.json").read_text())
    config.get("text_config", config)["max_position_embeddings"] = 8192
    (folder / "config.json").write_text(json.dumps(config))
    found = _estimate(folder)
    assert found.context_tokens == 1024
    model, _ = load_weights(folder)
    mx.eval(model.parameters())
    for rows, tokens in ((1, 1024), (2, 128)):
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        texts = PaddedTexts(mx.ones((rows, tokens), mx.int32), None, [tokens] * rows)
        mx.eval(Encoder(model).states(texts, None))
        taken = mx.get_peak_memory() - before
        assert taken <= found.working_bytes + found.working_token_bytes * tokens


def test_files_bound_the_texts_of_encoders(tmp_path: Path) -> None:
    shutil.copytree(SMALL / "bert", tmp_path / "bert")
    folder = tmp_path / "bert"
    assert _estimate(folder).context_tokens == 48
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    assert _estimate(folder).context_tokens == 20
    marks = {"query_length": 8, "document_length": 30}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(marks))
    assert _estimate(folder).context_tokens == 30


def test_long_texts_have_many_scores(tmp_path: Path) -> None:
    folder = tmp_path / "long"
    shutil.copytree(SMALL / "modernbert", folder)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config |= {"max_position_embeddings": 8192, "num_attention_heads": 12}
    (folder / "config.json").write_text(json.dumps(config))
    found = _estimate(folder, BackEnd.METAL)
    assert found.whole_bytes - found.fixed_bytes > 12 * 8192 * 8192 * 4


def test_encoders_are_known_by_their_configuration() -> None:
    assert encoder_of({"model_type": "bert"}) == "bert"
    assert encoder_of({"model_type": "roberta"}) == "xlm_roberta"
    assert encoder_of({"model_type": "mpnet"}) == ""
    assert encoder_of({"model_type": "gemma3_text", "use_bidirectional_attention": True})
    assert encoder_of({"model_type": "gemma3_text"}) is None
    assert encoder_of({"model_type": ["bert"]}) is None
    assert encoder_of({}) is None
